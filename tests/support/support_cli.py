"""Running the command line within a test."""

import sys

from precrop import cli


def run(capsys, *args):
    """Run the command line in this process; exit status, output, errors."""
    old, sys.argv = sys.argv, ["precrop", *map(str, args)]
    try:
        cli.main()
        status = 0
    except SystemExit as leave:
        status = leave.code
    finally:
        sys.argv = old
    out, err = capsys.readouterr()
    return status, out, err

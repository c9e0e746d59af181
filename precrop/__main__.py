"""``python -m precrop``."""

from precrop.cli import main

main()

"""Finds the stages where they lie in a source checkout: beside the package's folder, not in it.

In an installed package the stages (`precrop.cropping` and its sisters) are folders of this one, since setup.py maps
them into it. Python started in a checkout finds them through `Stages`, which knows these four names and no other: with
the checkout itself on the package's path, ``precrop.precrop``, ``precrop.tests`` and ``precrop.setup`` would be modules
too, and the first a second copy of everything.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

STAGES = ("scoring", "cropping", "recipes", "export")


class Stages(MetaPathFinder):
    """Finds each of `STAGES` in ``root``, under its name in the package, and nothing else."""

    def __init__(self, root: Path) -> None:
        self.folders = {f"precrop.{stage}": root / stage for stage in STAGES}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a stage is; None for every other module."""
        folder = self.folders.get(fullname)
        if folder is None:
            return None
        return spec_from_file_location(fullname, folder / "__init__.py", submodule_search_locations=[str(folder)])


def find_stages() -> None:
    """Let the stages be imported, where this file is in a checkout; in an installed package they are found anyway."""
    root = Path(__file__).resolve().parents[1]
    if not ((root / "setup.py").is_file() and all((root / stage / "__init__.py").is_file() for stage in STAGES)):
        return
    if not any(isinstance(finder, Stages) for finder in sys.meta_path):
        # First: an editable install of another checkout has a finder too, which would give its own stages.
        sys.meta_path.insert(0, Stages(root))

"""Optional dependencies: imported where they are used, named by their extra where they are absent."""

from __future__ import annotations

from importlib import import_module

from precrop.errors import MissingExtraError


def require(extra: str, *modules: str) -> None:
    """Import ``modules``; raise `MissingExtraError` naming the extra that brings those that fail."""
    faults = []
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            faults.append(f"{module} ({error})")
    if faults:
        raise MissingExtraError(
            f"cannot import {', '.join(faults)}. Install what is missing with: pip install 'precrop[{extra}]'"
        )

"""Small pieces of text."""

from __future__ import annotations

from collections.abc import Iterable


def some_of(things: Iterable[object], shown: int) -> str:
    """The first of many things, separated by commas, and how many more there are."""
    texts = list(map(str, things))
    more = f" and {len(texts) - shown} more" if len(texts) > shown else ""
    return ", ".join(texts[:shown]) + more

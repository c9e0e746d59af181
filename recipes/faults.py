"""A fault of a recipe in words: where it is, what was got, what was expected."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel

from precrop.recipes.schema import Recipe

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Location = tuple[int | str, ...]

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a section (lines of 'key: value')",
    "model_type": "a section (lines of 'key: value')",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} entries",
}
TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a section",
}


def describe(fault: ErrorDetails, lines: dict[Location, int], origins: dict[Location, str]) -> tuple[int, str]:
    """The line to sort by and the text of one of pydantic's faults.

    ``lines`` holds the file's line for each location, ``origins`` the override that set one.
    """
    at = _readable(fault["loc"])
    path = ".".join(map(str, at)) or "top level"
    parent = next(at[:end] for end in range(len(at), -1, -1) if at[:end] in lines or end == 0)
    line = lines.get(parent, 0)
    where = f"line {line}: " if parent in lines else ""
    for end in range(len(at), 0, -1):
        if at[:end] in origins:
            line, where = 10**9, f"override {origins[at[:end]]!r}: "
            break
    return line, f"{where}{path}: {_reason(fault, at)}"


def _reason(fault: ErrorDetails, at: Location) -> str:
    kind, got = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        return _unknown(str(at[-1]), section_at(at[:-1]))
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return f"{fault['ctx']['error']}{_shown(got)}"
    if kind in EXPECTED:
        context = dict(fault.get("ctx", {}))
        return f"expected {EXPECTED[kind].format(**context)}{_shown(got)}"
    return f"{fault['msg']}{_shown(got)}"


def _shown(got: Any) -> str:
    if isinstance(got, dict | BaseModel):
        return ""
    if got is None:
        return ", got nothing"
    return f", got {got!r} ({TYPES.get(type(got), type(got).__name__)})"


def _unknown(key: str, section: type[BaseModel] | None) -> str:
    known = list(section.model_fields) if section else []
    near = get_close_matches(key, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key{hint} (known here: {', '.join(known)})"


def _readable(location: tuple[int | str, ...]) -> Location:
    """Pydantic's location less what it adds for a dict's key (``[key]``)."""
    return tuple(part for part in location if part != "[key]")


def section_at(location: Location) -> type[BaseModel] | None:
    """The schema of the section at a location of the recipe; none where it is not a section."""
    found: Any = Recipe
    for part in location:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = _section_of(field.annotation) if field else None
        elif isinstance(found, tuple):  # a mapping of names to sections
            found = found[1]
        else:
            return None
    return found if isinstance(found, type) else None


def _section_of(annotation: Any) -> Any:
    """A section itself, (key, section) of a mapping to sections, or none; optional or not."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = get_args(annotation)
    if get_origin(annotation) is dict:
        return inner[0], _section_of(inner[1])
    return next((found for found in map(_section_of, inner) if found), None)

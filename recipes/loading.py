"""Reading a recipe: YAML with line numbers, overrides, and every fault at once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from precrop.errors import RecipeError
from precrop.recipes.faults import Location, describe
from precrop.recipes.schema import Recipe

CONFIGS = Path(__file__).parent / "configs"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes ``1e-3`` for text and ``010`` for eight; here a number is what it looks like."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"),
    list("-+0123456789."),
)


def load_recipe(source: str | Path | Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        source: a YAML file, the name of a shipped recipe (``digits``), or a recipe.
        overrides: ``section.key=value``, the value in YAML.

    Raises:
        RecipeError: with every fault of the file and the overrides, each with its
            line and its path in the file.
    """
    lines: dict[Location, int] = {}
    faults: list[tuple[int, str]] = []
    if isinstance(source, Recipe):
        title, settings = f"the recipe {source.name!r}", source.model_dump()
    else:
        path = _find(source)
        title = str(path)
        settings = _read(path, lines, faults)
    origins: dict[Location, str] = {}
    for override in overrides:
        _override(settings, override, origins, faults)
    try:
        recipe = Recipe.model_validate(settings)
    except ValidationError as error:
        faults += [describe(fault, lines, origins) for fault in error.errors()]
        recipe = None
    if faults or recipe is None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        listed = "\n".join(f"  {text}" for _, text in sorted(faults))
        raise RecipeError(f"{title} has {count}:\n{listed}")
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML with every setting spelled out; reads back as an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if str(source) in shipped:
        return shipped[str(source)]
    what = "is a folder" if path.is_dir() else "does not exist"
    raise RecipeError(f"the recipe {source} {what}. Expected a YAML file or a shipped recipe: {', '.join(shipped)}.")


def _read(path: Path, lines: dict[Location, int], faults: list[tuple[int, str]]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        loader = _Loader(text)
        node = loader.get_single_node()
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"cannot read the recipe {path}: not UTF-8 text ({error.reason}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise RecipeError(f"{path} is not YAML: {where}{reason}.") from error
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(f"{path} is not a recipe: expected sections such as 'name:', 'model:', 'data:', 'train:'.")
    _refuse_cycles(node, path)
    _note_lines(node, (), lines, faults)
    try:
        settings: dict[str, Any] = loader.construct_document(node)  # of a mapping
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise RecipeError(f"{path} is not a recipe: {where}{getattr(error, 'problem', error)}.") from error
    return settings


def _refuse_cycles(node: yaml.Node, path: Path, above: frozenset[int] = frozenset()) -> None:
    """An alias inside what it stands for would have no end."""
    if id(node) in above:
        raise RecipeError(f"{path} is not a recipe: line {node.start_mark.line + 1}: an entry that contains itself.")
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    for part in parts if isinstance(node, yaml.CollectionNode) else ():
        _refuse_cycles(part, path, above | {id(node)})


def _note_lines(node: yaml.Node, at: Location, lines: dict[Location, int], faults: list[tuple[int, str]]) -> None:
    """Record the line of every key, and the keys given twice (YAML would silently take the last)."""
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            here = (*at, key.value)
            if key.value in seen:
                path = ".".join(map(str, here))
                faults.append((line, f"line {line}: {path}: given twice; the first is on line {seen[key.value]}"))
            seen[key.value] = lines[here] = line
            _note_lines(value, here, lines, faults)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*at, index), lines, faults)


def _override(
    settings: dict[str, Any], override: str, origins: dict[Location, str], faults: list[tuple[int, str]]
) -> None:
    """Set one ``section.key=value`` in place; a malformed one is a fault."""
    # Overrides come after all lines of the file in the list of faults.
    last = 10**9
    path, equals, text = override.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        faults.append((last, f"override {override!r}: expected section.key=value, such as train.epochs=2"))
        return
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        faults.append((last, f"override {override!r}: {text!r} is not a YAML value"))
        return
    section = settings
    for depth, key in enumerate(keys[:-1]):
        if section.get(key) is None:
            section[key] = {}
        if not isinstance(section[key], dict):
            parent = ".".join(keys[: depth + 1])
            faults.append((last, f"override {override!r}: {parent} is {section[key]!r}, not a section"))
            return
        section = section[key]
    section[keys[-1]] = value
    origins[keys] = override

"""What ``precrop score`` and ``precrop crop`` share: densities, batches of a named data set, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from precrop import api
from precrop.cropping.paths import PATHS
from precrop.errors import PrecropError, RecipeError
from precrop.inputs import checked_budget
from precrop.scoring.densities import Densities
from precrop.scoring.run import scorer_named


def densities_for(
    network: Any,
    scorer: str,
    budget: dict[str, Any],
    data: str | None,
    data_root: str | None,
    batch_size: int,
    shape: tuple[int, ...] | None,
    seed: int,
) -> Any:
    """What ``precrop crop`` passes as the scorer: a name that needs only sizes, or densities."""
    if scorer.endswith(".json"):
        return Densities.load(scorer)
    row = scorer_named(scorer)
    if scorer in PATHS:
        return scorer
    share = api.scored_density(checked_budget(**budget))
    loader = data_loader(data, data_root, batch_size, shape) if row.needs_data else None
    with progress_bar(scorer) as report:
        return api.score(network, scorer, share, data=loader, input_shape=shape, seed=seed, progress=report)


def data_loader(name: str | None, root: str | None, batch_size: int, shape: tuple[int, ...] | None) -> Any:
    """Shuffled batches of a data set's training split, without augmentation; none without a name."""
    if name is None:
        return None
    from pydantic import ValidationError
    from torch.utils.data import DataLoader

    from precrop.recipes.data import load_data
    from precrop.recipes.sections import Data

    try:
        settings = Data(name=name, root=root, image_size=None if shape is None else shape[-1])
    except ValidationError as error:
        faults = "; ".join(f"--data {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise PrecropError(f"{faults} (got {name!r}).") from None
    try:
        images = load_data(settings)
    except RecipeError as error:
        raise PrecropError(f"--data {name}: {str(error).replace('data.root', '--data-root')}") from error
    return DataLoader(images.plain or images.train, batch_size=batch_size, shuffle=True)


@contextmanager
def progress_bar(scorer: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal for the rounds of a scorer; nothing where it could not be redrawn."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(f"scoring: {scorer}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(scorer, total=None)
        yield lambda done, rounds: bar.update(task, completed=done, total=rounds)

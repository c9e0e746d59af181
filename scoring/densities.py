"""What a scorer says of a network: the share of each layer's weights to keep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from precrop.errors import ScoreError
from precrop.files import checked_path, parsed_json, write_atomically


@dataclass(frozen=True, eq=False, repr=False)
class Densities(Mapping[str, float]):
    """Layer name to kept share of the layer's weights, in (0, 1], in the network's order.

    Compares and reads like a dictionary; prints as a table. ``scorer`` and ``density`` are what was asked,
    ``input_shape`` is the image that was used, ``weights`` maps a layer to its number of weights, and
    ``scores`` (where asked for) a parameter's name to the raw scores, shaped like it: higher means keep.
    """

    shares: Mapping[str, float]
    scorer: str
    density: float
    input_shape: tuple[int, ...]
    weights: Mapping[str, int]
    scores: Mapping[str, torch.Tensor] | None = field(default=None)

    def __getitem__(self, layer: str) -> float:
        return self.shares[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shares)

    def __len__(self) -> int:
        return len(self.shares)

    def __repr__(self) -> str:
        return f"Densities({dict(self.shares)!r}, scorer={self.scorer!r}, density={self.density:g})"

    def __str__(self) -> str:
        from precrop.tables import as_text, densities_line, densities_table

        return as_text(densities_line(self), densities_table(self))

    @property
    def mean(self) -> float:
        """The share kept of all weights together."""
        return sum(self[layer] * n for layer, n in self.weights.items()) / sum(self.weights.values())

    def to_json(self) -> str:
        """The densities as indented JSON, without the raw scores."""
        record = {
            "scorer": self.scorer,
            "density": self.density,
            "input_shape": list(self.input_shape),
            "weights": dict(self.weights),
            "densities": dict(self.shares),
        }
        return json.dumps(record, indent=2)

    def save(self, path: str | Path) -> None:
        """Write the JSON; an existing file is replaced only once the new one is whole."""
        write_atomically(path, self.to_json().encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Densities:
        """Read what `save` wrote; raises `ScoreError`."""
        file = checked_path(path)
        try:
            record: dict[str, Any] = parsed_json(file.read_bytes())
            found = cls(
                shares={str(layer): float(share) for layer, share in record["densities"].items()},
                scorer=str(record["scorer"]),
                density=float(record["density"]),
                input_shape=tuple(int(size) for size in record["input_shape"]),
                weights={str(layer): int(count) for layer, count in record["weights"].items()},
            )
            found._check()
            return found
        except OSError as error:
            raise ScoreError(f"cannot read the densities {path}: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScoreError(
                f"{path} holds no densities ({type(error).__name__}: {error}). Expected the JSON that Densities.save "
                "or `precrop score -o` writes."
            ) from error

    def _check(self) -> None:
        """Raise `ValueError` for figures that no scorer gives."""
        for name, share in (("density", self.density), *self.shares.items()):
            if not 0 < share <= 1 + 1e-9:
                raise ValueError(f"{name} is {share!r}; expected a share in (0, 1]")
        if self.weights.keys() != self.shares.keys():
            raise ValueError("the layers of weights and densities are not the same")
        if not self.weights or min(self.weights.values()) < 1 or min(self.input_shape, default=0) < 1:
            raise ValueError("weights and input_shape are not of a network; expected positive whole numbers")

"""Initial values that are not independent draws: orthogonal, diagonal, sparse, repeated, computed.

Each has a shape at a new size of its own. `pattern_of` recognises the first three, `repeated` and `computed` the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from precrop.cropping.spread import Spread, sample_of


class Pattern(Protocol):
    """What fills a tensor of a new size with the pattern that an old one has."""

    def fill(self, new: torch.Tensor, groups: int) -> torch.Tensor:
        """Fill a tensor of float32 or float64 in place, of a layer with so many groups."""


@dataclass(frozen=True)
class Orthogonal:
    """Orthonormal rows or columns times a gain, of the whole weight or of each group's part (`nn.init.orthogonal_`).

    ``central`` puts them in the middle of the kernel, among zeros (delta-orthogonal, Xiao et al. 2018).
    """

    gain: float
    grouped: bool = False
    central: bool = False

    def fill(self, new: torch.Tensor, groups: int) -> torch.Tensor:
        """As `nn.init.orthogonal_` does."""
        target = _centre(new.zero_()) if self.central else new
        for part in target.chunk(groups if self.grouped else 1):
            part.copy_(nn.init.orthogonal_(torch.empty_like(part, memory_format=torch.contiguous_format), self.gain))
        return new


@dataclass(frozen=True)
class Diagonal:
    """One kernel where an output meets the input of its number, zeros elsewhere: identity, Dirac, upsampling."""

    kernel: torch.Tensor
    grouped: bool = False

    def fill(self, new: torch.Tensor, groups: int) -> torch.Tensor:
        """As `nn.init.eye_` and `nn.init.dirac_` do, with any kernel."""
        for part in new.zero_().chunk(groups if self.grouped else 1):
            index = torch.arange(min(part.shape[:2]), device=new.device)
            part[index, index] = self.kernel.to(new)
        return new


@dataclass(frozen=True)
class Sparse:
    """Normal values with the same share of zeros in each column (`nn.init.sparse_`)."""

    sparsity: float
    deviation: float

    def fill(self, new: torch.Tensor, groups: int) -> torch.Tensor:
        """As `nn.init.sparse_` does."""
        return nn.init.sparse_(new, self.sparsity, self.deviation)


def pattern_of(tensor: torch.Tensor, spread: Spread, groups: int) -> Pattern | None:
    """The pattern of a weight of shape (out, in / groups, *kernel) that is not constant, None for independent draws."""
    if tensor.dim() < 2 or min(tensor.shape[:2]) == 0:
        return None
    tensor = tensor.detach()
    if spread.zeros < 0.05:
        return _orthogonal(tensor, spread.grain, groups)
    return _diagonal(tensor, groups) or _delta_orthogonal(tensor, spread.grain, groups) or _sparse(tensor)


def _orthogonal(tensor: torch.Tensor, grain: float, groups: int) -> Orthogonal | None:
    for grouped in (False, True) if groups > 1 and len(tensor) % groups == 0 else (False,):
        part = tensor[: len(tensor) // groups] if grouped else tensor
        gain = _gain(part.flatten(1), grain)
        if gain is not None:
            return Orthogonal(gain, grouped)
    return None


def _gain(matrix: torch.Tensor, grain: float) -> float | None:
    """The common length of the rows (or columns, if fewer) where some of them are orthogonal, else None."""
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    if matrix.shape[0] < 2:
        return None
    # Rounding leaves products near grain / sqrt(n); those of independent rows are near 1 / sqrt(n).
    tolerance = max(3e-5, 8 * grain / math.sqrt(matrix.shape[1]))
    square = 0.0
    for count in (2, 8):  # two rows rule out nearly every other matrix
        rows = matrix[:count].to(torch.promote_types(matrix.dtype, torch.float32))
        products = (rows @ rows.T).tolist()
        square = products[0][0]
        off = (abs(p - square * (i == j)) for i, row in enumerate(products) for j, p in enumerate(row))
        if not max(off) < tolerance * square:
            return None
    return math.sqrt(square)


def _diagonal(tensor: torch.Tensor, groups: int) -> Diagonal | None:
    for grouped in (False, True) if groups > 1 and len(tensor) % groups == 0 else (False,):
        found = Diagonal(tensor[0, 0].clone(), grouped)
        if torch.equal(found.fill(torch.empty_like(tensor), groups), tensor):
            return found
    return None


def _centre(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the middle tap of a kernel, of shape (out, in / groups)."""
    for size in tensor.shape[2:]:
        tensor = tensor.select(2, size // 2)
    return tensor


def _delta_orthogonal(tensor: torch.Tensor, grain: float, groups: int) -> Orthogonal | None:
    centre = _centre(tensor)
    if tensor.dim() == 2 or torch.count_nonzero(centre) != torch.count_nonzero(tensor):
        return None
    found = _orthogonal(centre, grain, groups)
    return found and Orthogonal(found.gain, found.grouped, central=True)


def _sparse(tensor: torch.Tensor) -> Sparse | None:
    zeros = (tensor == 0).sum(0)
    rows, count = len(tensor), int(zeros.flatten()[0])
    if tensor.dim() > 2 or tensor.shape[1] < 2 or count == 0 or bool((zeros != count).any()):
        return None
    # count = ceil(sparsity * rows), for any share between count - 1 and count rows: the roundest of them
    rounded = [
        value for value in (round(count / rows - 0.5 / rows, d) for d in (1, 2, 3)) if math.ceil(value * rows) == count
    ]
    deviation = float(tensor[tensor != 0].double().square().mean().sqrt())
    return Sparse(rounded[0] if rounded else count / rows, deviation)


def repeated(tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether along every axis that gets another size the slices repeat: all equal, or with a period of two or more."""
    return all(_repeats(tensor.detach(), axis) for axis in range(tensor.dim()) if tensor.shape[axis] != shape[axis])


def _repeats(tensor: torch.Tensor, axis: int) -> bool:
    half = tensor.shape[axis] // 2
    first = tensor.as_strided((half + 1,), (tensor.stride(axis),))
    equal = first[1:] == first[0]
    if not equal.any():
        return False
    slices = tensor.movedim(axis, 0)
    periods = (torch.nonzero(equal).flatten()[:8] + 1).tolist()
    return any(torch.equal(slices[period:], slices[:-period]) for period in periods)


def computed(tensor: torch.Tensor, spread: Spread) -> bool:
    """Whether values depend on their place, as in tables of positions and banks of filters: then they were not drawn.

    Neighbours in memory or along the first axis are alike beyond six standard errors, or a vector is in order.
    """
    tensor = tensor.detach()
    vector = tensor.flatten() if tensor.numel() == max(tensor.shape, default=0) else None
    if vector is not None and len(vector) >= 8:
        steps = vector.diff()
        if bool((steps >= 0).all()) or bool((steps <= 0).all()):
            return True
    sample = sample_of(tensor)[:4096]
    pairs = [(sample[1:], sample[:-1])]
    if tensor.dim() > 1 and len(tensor) > 1:
        block = tensor[:64].flatten(1)[:, :64]
        pairs.append((block[1:].flatten(), block[:-1].flatten()))
    return any(_alike(a.float(), b.float(), spread) for a, b in pairs)


def _alike(a: torch.Tensor, b: torch.Tensor, spread: Spread) -> bool:
    correlation = float(((a - spread.mean) * (b - spread.mean)).mean()) / spread.variance
    return abs(correlation) > 6 / math.sqrt(len(a))


def recut(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor's values for fewer channels (a blur filter for each), or repeated for more."""
    tensor = tensor.detach()
    for axis, size in enumerate(shape):
        if size != tensor.shape[axis]:
            tensor = tensor.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])
    return tensor.clone()

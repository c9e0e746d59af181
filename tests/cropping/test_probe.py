"""Operators without a rule: what probing reads off torch's own shape functions."""

import pytest
import torch
from torch import nn

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.rules import RULES
from precrop.cropping.shapes import ShapeMode
from precrop.cropping.solver import Solver
from precrop.cropping.symbolic import shape_of


@pytest.fixture
def run():
    solver = Solver()
    mode = ShapeMode(solver, lambda *product: None)

    def call(function, *hints, height=8):
        sizes = [solver.fresh(hint) for hint in hints]
        with torch.inference_mode():
            tensors = [mode.make((2, size, height, height), torch.float32) for size in sizes]
            with mode:
                return solver, sizes, function(*tensors)

    return call


def evaluate(solver, tensor):
    return [size if isinstance(size, int) else solver.hint(size) for size in shape_of(tensor)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.pixel_shuffle(x, 2),
        lambda x: nn.functional.pixel_unshuffle(x, 2),
        lambda x: nn.functional.unfold(x, 3, padding=1),
        lambda x: nn.functional.pad(x, (0, 0, 0, 0, 2, 3)),
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: nn.functional.adaptive_max_pool2d(x, 3),
        lambda x: nn.functional.avg_pool2d(x, 2),
        lambda x: x.repeat(1, 3, 1, 1),
        lambda x: x.repeat_interleave(2, dim=1),
        lambda x: x.std((2, 3), keepdim=True),
        lambda x: x.cumsum(1),
        lambda x: x.roll(1, 1),
        lambda x: x.flip(1),
        lambda x: torch.fft.rfft2(x).real,
        lambda x: x.amax((2, 3)),
        lambda x: x.unfold(2, 4, 2),
        lambda x: nn.functional.channel_shuffle(x, 4),
        lambda x: nn.functional.glu(x, 1),
        lambda x: torch.logsumexp(x, 1),
    ],
)
def test_the_form_gives_torchs_own_shape_at_any_width(run, function):
    solver, (size,), out = run(function, 24)
    shape = [solver.resolve(s) if isinstance(s, Polynomial) else s for s in shape_of(out)]
    resolved = solver.resolve(size)
    ((variable, multiple),) = resolved.coefficients().items()
    for width in (24, 48, 2 * multiple):
        value = {variable: width // multiple}.__getitem__
        expected = function(torch.zeros(2, width, 8, 8)).shape
        assert [s if isinstance(s, int) else s.evaluate(value) for s in shape] == list(expected)


@pytest.mark.parametrize(
    ("function", "unit"),
    [
        (lambda x: nn.functional.pixel_shuffle(x, 2), 4),
        (lambda x: nn.functional.channel_shuffle(x, 3), 3),
        (lambda x: nn.functional.glu(x, 1), 2),
        (lambda x: x.flip(1), 1),
    ],
)
def test_the_unit_is_what_the_operator_demands(run, function, unit):
    solver, (size,), _ = run(function, 24)
    assert list(solver.resolve(size).coefficients().values()) == [unit]


def test_sizes_that_only_fit_together_are_tied(run):
    assert "cross" not in RULES
    solver, (a, b), _ = run(lambda x, y: torch.cdist(x.flatten(2), y.flatten(2)), 6, 9)
    assert solver.resolve(a) != solver.resolve(b)  # the number of points may differ
    solver, (a, b), _ = run(lambda x, y: torch.cdist(x.flatten(2).mT, y.flatten(2).mT), 6, 6)
    assert solver.resolve(a) == solver.resolve(b)  # their dimension may not


def test_a_shape_that_is_no_linear_form_is_pinned(run):
    solver, (size,), out = run(lambda x: nn.functional.pdist(x[0, :, 0]), 6)
    assert solver.value(size) == 6
    assert evaluate(solver, out) == [15]

import re

import numpy as np
import pytest
import torchvision
from nets import Chain, Grouped, Residual

from precrop import PrecropError, inspect, plan
from precrop.crop_plan import Budget
from precrop.cropping.allocate import allocate
from precrop.cropping.graph import FreeWidth
from precrop.cropping.ladders import ladder
from precrop.cropping.paths import WidthPath, shares_of_ends
from precrop.cropping.rounding import first_fit
from precrop.errors import BudgetError

SHAPE = (3, 8, 8)


@pytest.fixture(scope="module")
def graphs():
    names = ("resnet18", "mobilenet_v2", "shufflenet_v2_x0_5")
    return {name: inspect(getattr(torchvision.models, name)(weights=None)) for name in names}


@pytest.mark.parametrize("scorer", ["synexp", "uniform"])
@pytest.mark.parametrize("caps", [("params",), ("macs",), ("params", "macs")], ids="+".join)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5"])
def test_a_sweep_meets_every_cap_and_never_shrinks(graphs, name, caps, scorer):
    graph = graphs[name]
    whole = graph.size(graph.original)
    before = 0.0
    for ratio in np.arange(0.05, 1.001, 0.05):
        widths, _ = allocate(graph, Budget(**dict.fromkeys(caps, ratio)), scorer)
        size = graph.size(widths)
        used = max(getattr(size, cap) / getattr(whole, cap) for cap in caps)
        assert used <= ratio
        assert used >= 0.99 * ratio
        assert used >= before
        before = used


def test_a_fine_sweep_never_shrinks(graphs):
    """Steps far below one unit of width, where rounding could turn the order round."""
    graph = graphs["resnet18"]
    sizes = [graph.size(allocate(graph, Budget(params=r), "synexp")[0]).params for r in np.linspace(0.3, 0.33, 121)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 10


def test_both_caps_are_used_up(graphs):
    graph = graphs["resnet18"]
    whole, size = graph.size(graph.original), graph.size(allocate(graph, Budget(params=0.5, macs=0.5))[0])
    assert size.params / whole.params > 0.95 * 0.5
    assert size.macs / whole.macs > 0.95 * 0.5


def test_uniform_keeps_one_ratio_everywhere(graphs):
    graph = graphs["resnet18"]
    widths, _ = allocate(graph, Budget(params=0.25), "uniform")
    ratios = [widths[w.name] / w.size for w in graph.widths]
    assert max(ratios) - min(ratios) < 0.13  # one unit of the narrowest width, 8 of 64


def test_round_to_holds_for_every_width(graphs):
    for graph in graphs.values():
        widths, notes = allocate(graph, Budget(params=0.4), "synexp", round_to=8)
        assert all(n % 8 == 0 for n in widths.values())
        assert graph.size(widths).params <= 0.4 * graph.size(graph.original).params
        assert not notes or "round_to=8" in notes[0]


def test_round_to_that_cannot_come_close_is_said():
    crop = plan(Chain(a=16, b=32), params=0.6, round_to=16, input_shape=SHAPE)
    assert crop.widths["two.0"].kept == 16
    assert crop.params_ratio < 0.99 * 0.6
    assert "round_to=16" in crop.notes[0]


def test_ratio_one_keeps_everything(graphs):
    for graph in graphs.values():
        assert allocate(graph, Budget(params=1.0, macs=1.0))[0] == graph.original
        assert allocate(graph, Budget(params=1.0), round_to=16)[0] == graph.original


def test_widen_grows_layers_at_the_same_budget(graphs):
    graph = graphs["resnet18"]
    widths, _ = allocate(graph, Budget(params=0.5), "synexp", widen=True)
    whole = graph.size(graph.original).params
    assert any(widths[w.name] > w.size for w in graph.widths)
    assert 0.99 * 0.5 * whole <= graph.size(widths).params <= 0.5 * whole


def test_out_of_reach_says_what_is_and_what_fixes_it(graphs):
    graph = graphs["resnet18"]
    with pytest.raises(BudgetError, match=r"params 0\.0001 .* smallest reachable is 0\.000\d.*fc .*network's output"):
        allocate(graph, Budget(params=0.0001))
    reach = 0.0003
    assert graph.size(allocate(graph, Budget(params=reach))[0]).params <= reach * graph.size(graph.original).params


def test_given_densities_are_fitted():
    """On a chain, a width's ratio is the root of the densities on its two sides."""
    graph = inspect(Chain(a=256, b=256), input_shape=SHAPE)
    share = shares_of_ends(graph) @ np.log([0.25, 0.25, 0.25])
    # one.0's input and the classifier's output are fixed, so those layers put their whole density on one width.
    assert np.exp(share) == pytest.approx([0.25**0.75, 0.25**0.75])
    crop = plan(
        Chain(a=256, b=256),
        params=0.3,
        scorer={"one.0": 1.0, "two.0": 0.25, "head.fc": 0.25},
        input_shape=SHAPE,
    )
    assert crop.scorer == "densities"
    assert crop.widths["one.0"].kept > crop.widths["two.0"].kept
    assert 0.99 * 0.3 <= crop.params_ratio <= 0.3


@pytest.mark.parametrize("seed", range(3))
def test_given_densities_use_up_both_caps(graphs, seed):
    """One scale fills one cap; leaning the densities towards the slack one fills both."""
    graph = graphs["resnet18"]
    random = np.random.default_rng(seed)
    densities = {layer.name: float(random.uniform(0.05, 1)) for layer in graph.layers}
    whole = graph.size(graph.original)
    for params, macs in ((0.2, 0.2), (0.2, 0.3), (0.3, 0.2)):
        kept = graph.size(allocate(graph, Budget(params=params, macs=macs), densities)[0])
        assert 0.9 * params * whole.params <= kept.params <= params * whole.params
        assert 0.9 * macs * whole.macs <= kept.macs <= macs * whole.macs


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("synexpp", "unknown scorer 'synexpp'.*'synexp'"),
        ({"one.1": 0.5}, r"no layer.*'one\.1'.*'one\.0'"),
        ({"one.0": 0.0}, r"density of one\.0 is 0\.0.*0 < density <= 1"),
        ({"one.0": float("nan")}, "density of one.0 is nan"),
    ],
)
def test_bad_scorers(scorer, message):
    with pytest.raises(PrecropError, match=message):
        plan(Chain(), 0.5, scorer=scorer, input_shape=SHAPE)


def width(size, multiple=1, minimum=1):
    return FreeWidth("w", 0, size, multiple, minimum, ("w",))


def rungs(size, **settings):
    kept = {key: settings.pop(key) for key in ("multiple", "minimum") if key in settings}
    return ladder(width(size, **kept), size, **settings).rungs.tolist()


def test_ladders():
    assert rungs(40) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]
    assert rungs(24, minimum=8) == [8, 10, 12, 14, 16, 20, 24]
    assert rungs(16, multiple=4, minimum=4) == [4, 8, 12, 16]
    assert rungs(58, round_to=8) == [8, 16, 24, 32, 40, 48, 56]
    assert rungs(6, round_to=8) == [6]
    assert rungs(58, unit=16) == [1, 2, 4, 8, 16, 32, 48, 58]
    assert rungs(10, unit=16) == [1, 2, 4, 8, 10]
    assert rungs(32, multiple=4, minimum=4, unit=16) == [4, 8, 16, 32]
    assert rungs(440, multiple=55, minimum=55, unit=16) == list(range(55, 441, 55))


def test_an_aligned_width_keeps_its_unit_down_to_an_eighth_of_it():
    steps = ladder(width(64), 64, unit=16)
    real = np.array([0.2, 0.25, 0.5, 1, 1.9, 2, 16, 23.9, 24, 41, 64])
    assert steps.rounded(real).tolist() == [1, 2, 4, 8, 8, 16, 16, 16, 32, 48, 64]
    assert ladder(width(64), 64).rounded(np.array([3.9, 16, 23.9])).tolist() == [4, 16, 24]


def test_grouped_widths_stay_multiples_of_the_groups():
    for ratio in (0.15, 0.3, 0.5, 0.9):
        crop = plan(Grouped(), params=ratio, input_shape=SHAPE)
        assert all(w.kept % 4 == 0 for w in crop.widths.values())


def test_first_fit_follows_the_path():
    """Two equal widths, one of which the path prefers, and a cap on their sum."""
    path = WidthPath(np.log(np.array([[0.1, 0.01], [0.5, 0.05], [1.0, 0.1], [1.0, 1.0]])))
    widths = [width(100), width(100)]
    fit = first_fit(widths, path, lambda w: w.sum(-1) / 110, [ladder(w, 100) for w in widths])
    assert fit.widths.tolist() == [100, 10]


def test_narrow_networks_never_lose_a_layer():
    crop = plan(Residual(stream=3, inner=8), params=0.2, input_shape=SHAPE)
    assert min(w.kept for w in crop.widths.values()) >= 1


def test_what_could_still_grow_has_grown():
    """Parts of coarse rungs may leave room for several of the least steps: each is taken until none fits."""
    widths = [width(48), width(48)]
    path = WidthPath(np.log(np.array([[0.02, 0.02], [0.5, 0.5], [1.0, 1.0]])))
    # A step of the first costs 1, one of the second 40: the parts of its rungs alone would stop short.
    cost = np.array([1.0, 40.0])
    for cap in (700, 731, 757, 1000, 1313):
        fit = first_fit(widths, path, lambda w, cap=cap: (w @ cost) / cap, [ladder(w, 48, unit=32) for w in widths])
        assert fit.used <= 1
        grown = [(fit.widths + step) @ cost / cap for step in np.eye(2) if ((fit.widths + step) <= 48).all()]
        assert fit.used >= 0.99 or min(grown) > 1, f"{fit.widths} under {cap}"


@pytest.mark.parametrize("unit", [None, 16, 32])
def test_a_sweep_of_coarse_steps_is_filled_and_never_shrinks(unit):
    """Few widths, one of multiples of 12: at every budget no single step is left, and a larger one gives no less."""
    widths = [width(40), width(60, multiple=12, minimum=12), width(7)]
    path = WidthPath(np.linspace(-4, 0, 9)[:, None] * np.array([[1.0, 0.7, 0.4]]))
    ladders = [ladder(w, w.size, unit=unit) for w in widths]

    def cost(w):
        return w[..., 0] * w[..., 1] + w[..., 1] * w[..., 2] + 9 * w[..., 0]

    before, steps = 0.0, np.diag([w.multiple for w in widths])
    for cap in np.linspace(cost(np.array([1, 12, 1])), cost(np.array([40, 60, 7])), 400):
        fit = first_fit(widths, path, lambda w, cap=cap: cost(w) / cap, ladders)
        now = cost(fit.widths)
        assert before <= now <= cap
        before = now
        further = [fit.widths + s for s in steps if (fit.widths + s <= [w.size for w in widths]).all()]
        assert fit.used >= 0.99 or all(cost(w) > cap for w in further)
        if fit.used < 0.99:
            assert fit.beyond.used == pytest.approx(min(cost(w) for w in further) / cap)


def test_a_budget_that_stays_open_names_the_finest_step():
    crop = plan(Grouped(a=8, b=8), params=0.55, round_to=4, input_shape=SHAPE)
    assert crop.params_ratio < 0.99 * 0.55
    assert re.search(r"the finest, 4 more channels for [\w.]+ \(4 of 8 kept\), would take 1\d\d\.\d%", crop.notes[0])

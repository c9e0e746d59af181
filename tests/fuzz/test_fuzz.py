"""A few dozen of the networks that `make fuzz` checks a thousand of, and proof that its checks can fail."""

import copy
import re

import pytest
import torch
from fuzz import checks
from fuzz.__main__ import main
from fuzz.blocks import BLOCKS
from fuzz.checks import check
from fuzz.description import Block, Description
from fuzz.generator import Case, draw
from fuzz.network import build, owners_of, walk
from fuzz.shrinking import shrink

import precrop.api
from precrop.cropping.graph import WidthGraph

NORM = {"d": 2, "norm": "batch", "act": "relu", "bias": True, "k": 3}
PLAIN = Case(
    seed=0,
    network=Description(
        image=(3, 9, 8),
        blocks=(
            Block("Conv", ("w0",), {**NORM, "stride": 1, "keeps": "nothing"}),
            Block("Residual", ("w1",), {**NORM, "pre": False, "scale": "none"}),
            Block("Gate", ("w2",), {**NORM, "spelling": "pool", "hard": False}),
        ),
        widths={"w0": 30, "w1": 44, "w2": 7},
    ),
    request={"input_shape": [3, 9, 8], "ratio": 0.5, "scorer": "synexp"},
)

pytestmark = pytest.mark.filterwarnings("ignore::precrop.errors.PrecropWarning")


@pytest.mark.parametrize("seed", range(40))
def test_random_network(seed):
    case = draw(seed)
    faults = check(case)
    assert not faults, f"\n{case}\n" + "\n".join(map(str, faults))


def test_a_seed_is_one_case_and_its_text_gives_it_again():
    for seed in range(20):
        case = draw(seed)
        assert case == draw(seed)
        assert Description.from_json(case.network.to_json()) == case.network
    assert len({str(draw(seed).network.blocks) for seed in range(20)}) > 15


def test_every_kind_of_block_is_drawn_and_its_widths_are_read_off():
    seen = set()
    for seed in range(150):
        network = draw(seed).network
        seen |= {block.kind for block in network.blocks}
        names = {name for block in network.blocks for name in block.widths}
        assert names == set(network.widths) == set(owners_of(network))
        assert checks.widths_of(network, checks.shapes_of(build(network, "meta"))) == network.widths
        for name, multiple in walk(network)[1].multiples.items():
            assert network.widths[name] % multiple == 0
    assert seen == set(BLOCKS)


def test_a_network_is_the_same_whenever_it_is_built():
    network = draw(3).network
    torch.manual_seed(5)
    one, state = build(network).state_dict(), torch.get_rng_state()
    other = build(network).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(state, torch.get_rng_state())


def test_the_plain_case_has_no_fault():
    assert check(PLAIN) == []


# -- mutants: each fault that the checks are there for is planted, and must be found ---------------


def planted(monkeypatch, change):
    """Let every crop be changed by ``change(small)`` before it is returned; the names of the checks that see it."""
    honest = precrop.api._build

    def dishonest(model, graph, plan):
        small = honest(model, graph, plan)
        return change(small) or small

    monkeypatch.setattr(precrop.api, "_build", dishonest)
    return {fault.check for fault in check(PLAIN)}


def a_stale_tensor(small):
    conv = small.blocks[1].two
    conv.bias = torch.nn.Parameter(torch.zeros(conv.out_channels + 1))


def a_stale_number(small):
    small.blocks[0].body[0].out_channels += 1


def a_stale_number_under_a_name_of_its_own(small):
    small.blocks[0].half = 3


def a_wider_spread(small):
    with torch.no_grad():
        small.blocks[1].one.weight.mul_(2)


def a_lost_gradient(small):
    small.blocks[1].two.weight.requires_grad_(False)


def a_constant_that_is_noise(small):
    torch.nn.init.normal_(small.blocks[0].body[1].weight)


@pytest.mark.parametrize(
    ("change", "sees"),
    [
        (a_stale_tensor, {"runs", "same_as_by_hand"}),
        (a_stale_number, {"same_as_by_hand"}),
        (a_stale_number_under_a_name_of_its_own, {"same_as_by_hand"}),
        (a_wider_spread, {"spread"}),
        (a_lost_gradient, {"runs"}),
        (a_constant_that_is_noise, {"spread"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_of_the_crop_is_seen(monkeypatch, change, sees):
    assert sees <= planted(monkeypatch, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.train(not model.training),
        lambda model: next(model.parameters()).data.add_(1e-6),
        lambda model: setattr(next(model.parameters()), "grad", None),
        lambda model: setattr(model.blocks[0].body[0], "out_channels", 1),
    ],
    ids=["mode", "values", "gradient", "attribute"],
)
def test_a_change_of_the_model_given_is_seen(monkeypatch, change):
    honest = precrop.api._build

    def dishonest(model, graph, plan):
        small = honest(model, graph, plan)
        change(model)
        return small

    monkeypatch.setattr(precrop.api, "_build", dishonest)
    assert "unchanged" in {fault.check for fault in check(PLAIN)}


def test_figures_that_are_off_are_seen(monkeypatch):
    honest = WidthGraph.size

    def size(graph, widths):
        found = honest(graph, widths)
        return found.model_copy(update={"macs": round(found.macs * 1.02)})

    monkeypatch.setattr(WidthGraph, "size", size)
    assert "figures" in {fault.check for fault in check(PLAIN)}


@pytest.mark.parametrize(("asked", "facts"), [(1.03, "a cap is exceeded"), (0.9, "could take")])
def test_a_budget_exceeded_or_not_filled_is_seen(monkeypatch, asked, facts):
    honest = precrop.api.allocate

    def allocate(graph, budget, *rest):
        shares = {kind: share * asked for kind, share in budget.model_dump().items() if share is not None}
        return honest(graph, type(budget)(**shares), *rest)

    monkeypatch.setattr(precrop.api, "allocate", allocate)
    assert any(f.check == "budget" and facts in f.facts for f in check(PLAIN))


def test_a_sweep_that_shrinks_is_seen(monkeypatch):
    honest = precrop.api.allocate

    def allocate(graph, budget, *rest):
        share = 0.3 if budget.params > 0.5 else budget.params
        return honest(graph, type(budget)(params=share, macs=share), *rest)

    monkeypatch.setattr(precrop.api, "allocate", allocate)
    assert "sweep" in {fault.check for fault in check(PLAIN)}


def test_a_width_fixed_without_need_is_seen(monkeypatch):
    honest = checks.precrop.inspect
    monkeypatch.setattr(
        checks.precrop, "inspect", lambda model, shape, ignore=(): honest(model, shape, ignore or ["blocks.1.one"])
    )
    assert any("fixed without need: asked to ignore" in fault.facts for fault in check(PLAIN))


def test_a_budget_refused_without_need_is_seen(monkeypatch):
    def refuse(*_):
        raise precrop.errors.BudgetError("params 0.5 was asked")

    monkeypatch.setattr(precrop.api, "allocate", refuse)
    assert [fault.check for fault in check(PLAIN)] == ["budget"]


def test_random_state_that_moves_is_seen(monkeypatch):
    honest = precrop.api.allocate
    monkeypatch.setattr(precrop.api, "allocate", lambda *given: (torch.rand(1), honest(*given))[1])
    assert "leaves_random_state" in {fault.check for fault in check(PLAIN)}


def test_a_plan_that_applies_otherwise_is_seen(monkeypatch):
    monkeypatch.setattr(precrop, "apply", lambda model, plan: copy.deepcopy(model))
    assert "round_trip" in {fault.check for fault in check(PLAIN)}


def test_a_file_of_other_weights_is_seen(monkeypatch):
    pytest.importorskip("onnxruntime")
    assert check(PLAIN, onnx=True, only="exports") == []
    honest = precrop.export

    def export(model, path, **settings):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.head.fc.weight.mul_(1.01)
        return honest(other, path, **settings)

    monkeypatch.setattr(precrop, "export", export)
    assert [fault.check for fault in check(PLAIN, onnx=True, only="exports")] == ["exports"]


def test_a_case_that_fails_is_made_smaller():
    """The fault is a gate anywhere: what is left is one, on one layer."""
    smaller = shrink(PLAIN, lambda case: any(block.kind == "Gate" for block in case.network.blocks))
    assert [block.kind for block in smaller.network.blocks] == ["Gate"]
    assert smaller.request["scorer"] == "uniform"


def test_the_runner_prints_faults_with_their_seeds_and_fails(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz", "--seed", "1", "--only", "figures"])
    assert main() == 0
    assert capsys.readouterr().out.endswith("1 networks, 0 with faults\n")
    monkeypatch.setitem(checks.CHECKS, "figures", lambda outcome: iter(["planted"]))
    monkeypatch.setattr("sys.argv", ["fuzz", "--count", "2", "--start", "6", "--only", "figures", "--shrink"])
    assert main() == 1
    printed = capsys.readouterr().out
    assert "seed 6: {" in printed and "figures: planted" in printed and "smaller: {" in printed
    assert re.search(r"\n2 networks, [12] with faults: figures [12]\n$", printed)

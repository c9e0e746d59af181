"""What must hold of every crop. Each check is a generator of faults, one line each, over an `Outcome`.

The network built by hand at the crop's widths is the judge: of shapes, structure, the numbers that modules keep,
outputs, multiply-adds (`FlopCounterMode`) and the spread of fresh weights.
"""

from __future__ import annotations

import copy
import math
import random as python_random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import precrop
from precrop.crop_plan import CropPlan
from precrop.cropping.graph import WidthGraph
from precrop.cropping.layers import settled
from precrop.errors import BudgetError, ExportError, PrecropError

from .description import Description
from .generator import Case
from .initial import WEIGHTS, bias_variance, layers
from .measures import caps_of, images, macs_of, numbers, outputs, params_of, shapes_of, snapshot
from .network import Net, build, owners_of, walk, widths_of

#: From this share of the tighter cap on a budget is filled (`precrop.cropping.rounding.WITHIN`).
FILLED = 0.99
_SWEEP = (0.4, 0.7, 1.0, 1.25)


@dataclass
class Fault:
    """What does not hold: the check's name, and the facts."""

    check: str
    facts: str

    def __str__(self) -> str:
        return f"{self.check}: {self.facts}"


@dataclass
class Outcome:
    """A case, its network and its crop; what is needed of the network built by hand is made when first asked for."""

    case: Case
    model: Net
    request: dict[str, Any]
    small: nn.Module
    warned: list[str] = field(default_factory=list)

    @property
    def plan(self) -> CropPlan:
        return self.small.crop_plan  # type: ignore[return-value]

    @cached_property
    def kept(self) -> dict[str, int]:
        return widths_of(self.case.network, shapes_of(self.small))

    @cached_property
    def by_hand(self) -> Net:
        return build(self.case.network.at(self.kept))


# -- the crop itself ---------------------------------------------------------------


def runs(o: Outcome) -> Iterator[str]:
    """Forward and backward, in eval and train mode, with outputs of the original's shapes."""
    batch = images(o.case.network)
    for mode in (False, True):
        small, whole = copy.deepcopy(o.small).train(mode), copy.deepcopy(o.model).train(mode)
        found, expected = outputs(small, batch), outputs(whole, batch)
        if [t.shape for t in found] != [t.shape for t in expected]:
            yield f"outputs {[tuple(t.shape) for t in found]}, dense {[tuple(t.shape) for t in expected]}"
        sum((t.float() ** 2).mean() for t in found).backward()
        sum((t.float() ** 2).mean() for t in expected).backward()
        reached, other = (
            {name for name, p in model.named_parameters() if p.grad is not None} for model in (small, whole)
        )
        if reached != other:
            yield f"gradients of {sorted(reached ^ other)[:5]} differ, training={mode}"


def same_as_by_hand(o: Outcome) -> Iterator[str]:
    """Shapes, structure, numbers and outputs are those of the class built at these widths."""
    found, expected = shapes_of(o.small), shapes_of(o.by_hand)
    if found != expected:
        wrong = [f"{n}: {found.get(n)}, by hand {e}" for n, e in expected.items() if found.get(n) != e]
        yield f"shapes differ at {o.kept}: {'; '.join(wrong[:4])}"
        return
    if repr(o.small) != repr(o.by_hand):
        lines = zip(repr(o.small).splitlines(), repr(o.by_hand).splitlines(), strict=False)
        yield f"repr differs: {next((a.strip(), b.strip()) for a, b in lines if a != b)}"
    said = " ".join((*o.plan.notes, *o.warned))
    by_hand = numbers(o.by_hand)
    for key, number in numbers(o.small).items():
        if by_hand.get(key) != number and key[1] not in said:
            owner = type(o.model.get_submodule(key[0])).__name__
            yield f"number {'.'.join(key)} of {owner} is {number!r}, by hand {by_hand.get(key)!r}"
    twin = copy.deepcopy(o.by_hand)
    twin.load_state_dict(o.small.state_dict())
    with torch.no_grad():
        pairs = zip(*(outputs(copy.deepcopy(m).eval(), images(o.case.network)) for m in (o.small, twin)), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            yield "outputs differ from the network built by hand with the same weights"


def widths_are_free(o: Outcome) -> Iterator[str]:
    """Every width that the description leaves free varies alone in steps of what is demanded of it, and no other."""
    network = o.case.network
    graph = precrop.inspect(o.model, network.image)
    demands = walk(network)[1]

    def at(widths: dict[str, int]) -> dict[str, int]:
        return widths_of(network, _shapes(graph, widths))

    fixed = {f.layer: f.reason for f in graph.fixed}
    now, varied = at(graph.original), set()
    if now != network.widths:
        yield f"the graph's widths are {now}, the network's {network.widths}"
    for width in graph.widths:
        least = {**graph.original, width.name: width.minimum}
        step = {**graph.original, width.name: width.size - width.multiple}
        if width.minimum >= width.size:
            yield f"{width.name} ({width.size}) is free and cannot vary"
            continue
        for name in [name for name, kept in at(step).items() if kept != now[name]]:
            varied.add(name)
            moved, demanded = now[name] - at(step)[name], demands.multiples.get(name, 1)
            if moved != demanded and width.name[-1] != "]":
                yield f"{name} moves by {moved} with {width.name}, the code demands multiples of {demanded}"
        by_hand = shapes_of(build(network.at(at(least)), "meta"))
        if by_hand != {**by_hand, **_shapes(graph, least)}:
            yield f"shapes with {width.name} at {width.minimum} are not those built by hand"
    missing = set(owners_of(network)) - varied - demands.fixed
    for name in sorted(missing):
        layer = owners_of(network)[name][0].rpartition(".")[0]
        block = ".".join(layer.split(".")[:2])
        reason = fixed.get(layer) or next((r for f, r in fixed.items() if f.startswith(block)), fixed)
        yield f"{name} ({layer}, {network.widths[name]}) is fixed without need: {reason}"
    for name in sorted(varied & demands.fixed):
        yield f"{name} varies, and an output fixes it"


def _shapes(graph: WidthGraph, widths: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of all sized tensors at a choice of widths (channels by width name)."""
    values = graph.values(widths).__getitem__
    return {name: tuple(settled(size, values) for size in shape) for name, shape in graph.shapes.items()}


def figures(o: Outcome) -> Iterator[str]:
    """Parameters and multiply-adds that the plan prints are those that are counted."""
    for what, model, size in (("original", o.model, o.plan.original), ("crop", o.small, o.plan.cropped)):
        if size.params != params_of(model):
            yield f"{what}: {size.params:,} parameters in the plan, {params_of(model):,} counted"
        counted = macs_of(o.case.network, model)
        if size.macs != counted:
            off = size.macs / max(1, counted) - 1
            yield f"{what}: {size.macs:,} MACs in the plan, {counted:,} counted ({off:+.1%})"


def budget(o: Outcome) -> Iterator[str]:
    """Each cap is met, and what could still grow under every cap has grown."""
    caps = caps_of(o.request)
    whole = {"params": params_of(o.model), "macs": macs_of(o.case.network, o.model)}

    def used(model: nn.Module, network: Description) -> float:
        cost = {"params": params_of(model)}
        if "macs" in caps:
            cost["macs"] = macs_of(network, model)
        return max(cost[kind] / (cap * whole[kind]) for kind, cap in caps.items())

    share = used(o.small, o.case.network)
    if share > 1 + 1e-9:
        yield f"a cap is exceeded: {share:.4f} of it used"
    if share >= FILLED or (min(caps.values()) >= 1 and not o.plan.widen):
        return
    if not o.plan.notes:
        yield f"only {share:.3f} of the tighter cap is used, and no note says so"
    graph = precrop.inspect(o.model, o.case.network.image, o.plan.ignore)
    for width in graph.widths:
        step = math.lcm(width.multiple, o.plan.round_to or 1)
        kept = {name: w.kept for name, w in o.plan.widths.items()}
        kept[width.name] += step
        if kept[width.name] > width.size * (8 if o.plan.widen else 1):
            continue
        network = o.case.network.at(widths_of(o.case.network, {**shapes_of(o.small), **_shapes(graph, kept)}))
        if (grown := used(build(network), network)) <= 1:
            yield (
                f"used {share:.3f}; {width.name} ({kept[width.name] - step} of {width.size}) could take {step} more: "
                f"{grown:.3f}"
            )
            return


def sweep(o: Outcome) -> Iterator[str]:
    """A larger share gives no smaller a model, by the cap that binds."""
    caps, before = caps_of(o.request), 0.0
    for factor in _SWEEP:
        shares = {kind: min(1.0, cap * factor) for kind, cap in caps.items()}
        if max(cap * factor for cap in caps.values()) > 1:
            break
        request = {key: given for key, given in o.request.items() if key not in ("ratio", *caps)}
        try:
            found = precrop.plan(o.model, **request, **shares)
        except BudgetError:
            continue
        used = {"params": found.params_ratio, "macs": found.macs_ratio}
        now = max(used[kind] / cap for kind, cap in caps.items())
        if now < before - 1e-9:
            yield f"{factor} of the caps {caps}: {now:.4f}, after {before:.4f} at less"
        before = now


# -- what must not change -----------------------------------------------------------


def unchanged(before: list[Any], after: list[Any]) -> Iterator[str]:
    """The model given, and Python's and NumPy's random states, are as they were."""
    tensors, others = before[0], after[0]
    for (name, *old), (_, *new) in zip(tensors, others, strict=True):
        grads = [old.pop(), new.pop()]
        same = grads[0] is grads[1] or (None not in grads and torch.equal(*grads))
        if old != new or not same:
            yield f"the tensor {name} of the model given has changed"
    for what, old, new in zip(("attributes or modes", "random", "numpy.random"), before[1:], after[1:], strict=True):
        if old != new:
            yield f"{what} changed"


def leaves_random_state(o: Outcome) -> Iterator[str]:
    """A plan draws nothing."""
    state = torch.get_rng_state()
    found = precrop.plan(o.model, **o.request)
    if not torch.equal(state, torch.get_rng_state()):
        yield "plan moved torch's random state"
    if found != o.plan:
        yield "another plan of the same request differs"


# -- initial values -----------------------------------------------------------------


def spread(o: Outcome) -> Iterator[str]:
    """Tensors drawn anew have the variance of their rule, over all layers of one rule together."""
    network = o.case.network
    kurtosis = WEIGHTS[network.weights][2]
    pools: dict[str, list[torch.Tensor]] = {"weight": [], "bias": []}
    read_off = {"weight": 0, "bias": 0}  # the values that the rule can have been read off from
    for (old, old_bias), (new, new_bias) in zip(layers(o.model), layers(o.small), strict=True):
        for kind, a, b in (("weight", old, new), ("bias", old_bias, new_bias)):
            if a is None or b is None or a.shape == b.shape or (kind == "bias" and network.biases == "zeros"):
                continue
            shape = tuple(new.shape)
            variance = WEIGHTS[network.weights][1](shape) if kind == "weight" else bias_variance("default", shape)
            pools[kind].append(b.detach().flatten() / variance**0.5)
            read_off[kind] += a.numel()
    for kind, parts in pools.items():
        if not parts or (count := sum(p.numel() for p in parts)) < 200:
            continue
        ratio = float((torch.cat(parts) ** 2).mean())
        k = kurtosis if kind == "weight" else 1.8
        if abs(ratio - 1) > 0.02 + 5 * math.sqrt((k - 1) / min(count, read_off[kind])):
            rule = network.weights if kind == "weight" else f"{network.biases} beside weights by {network.weights}"
            yield f"{kind}, {rule}: {ratio:.2f} of the rule's variance in {count} values"
    for name, old in o.model.named_parameters():
        first = old.detach().flatten()[0]
        new = o.small.get_parameter(name).detach()
        if bool((old == first).all()) and old.numel() > 1 and not bool((new == first).all()):
            yield f"the constant {name} = {float(first):g} became {new.flatten()[:3].tolist()}"


# -- files ---------------------------------------------------------------------------


def round_trip(o: Outcome) -> Iterator[str]:
    """The plan as JSON and the crop as a checkpoint come back whole."""
    read = CropPlan.from_json(o.plan.to_json())
    if read != o.plan:
        yield "the plan differs after JSON"
    again = precrop.apply(build(o.case.network), read)
    if shapes_of(again) != shapes_of(o.small):
        yield "apply of the plan gives other shapes"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.safetensors")
        precrop.save(o.small, path)
        loaded = precrop.load(path, model=build(o.case.network))
    for name, tensor in loaded.state_dict().items():
        if not torch.equal(tensor, o.small.state_dict()[name]):
            yield f"{name} differs after save and load"


def exports(o: Outcome) -> Iterator[str]:
    """The ONNX file gives the outputs of the network built by hand. Only for one image in, one tensor out."""
    import onnxruntime

    batch = images(o.case.network, 3)
    twin = copy.deepcopy(o.by_hand).eval()
    twin.load_state_dict(o.small.state_dict())
    with torch.no_grad():
        expected = outputs(twin, batch)
    if len(expected) != 1 or o.model.container == "dict" or len(o.case.network.image) != 3:
        return
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "small.onnx")
        try:
            precrop.export(o.model, Path(folder, "dense.onnx"), input_shape=o.case.network.image)
        except ExportError:
            return  # what does not export uncropped is none of the crop's doing
        precrop.export(o.small, path, input_shape=o.case.network.image)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    error = float((torch.from_numpy(found) - expected[0]).abs().max()) / max(1e-6, float(expected[0].abs().max()))
    if error > 1e-3:
        yield f"ONNX differs by {error:.1e} of the largest output"


CHECKS: dict[str, Callable[[Outcome], Iterator[str]]] = {
    check.__name__: check
    for check in (
        runs, same_as_by_hand, widths_are_free, figures, budget, sweep, leaves_random_state, spread, round_trip,
    )
}  # fmt: skip


def request_of(case: Case, model: nn.Module) -> dict[str, Any]:
    """The keyword arguments: densities are drawn for the layers that the network has."""
    request = dict(case.request)
    if request.get("scorer") == "densities":
        draw = python_random.Random(case.seed)
        names = [layer.name for layer in precrop.inspect(model, case.network.image).layers]
        request["scorer"] = {name: round(draw.uniform(0.05, 1), 3) for name in names}
    return request


def check(case: Case, onnx: bool = False, only: str | None = None) -> list[Fault]:
    """All faults of a case."""
    model = build(case.network)
    batch = images(case.network)
    with torch.no_grad():
        state = copy.deepcopy(model.state_dict())
        outputs(model, batch)  # a network that does not run is the generator's fault: it raises here
    model.load_state_dict(state)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    before = snapshot(model)
    faults: list[Fault] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            request = request_of(case, model)
            torch.manual_seed(case.seed)
            small = precrop.precrop(model, **request)
    except BudgetError as error:
        return [*_out_of_reach(case, model, str(error)), *_faults("unchanged", unchanged(before, snapshot(model)))]
    except PrecropError as error:
        if "no layer that can be cropped" in str(error) and nothing_free(case):
            return []
        return [Fault("precrop", f"{type(error).__name__}: {str(error)[:400]}")]
    except Exception as error:
        return [Fault("precrop", f"{type(error).__name__}: {str(error)[:400]}")]
    faults += _faults("unchanged", unchanged(before, snapshot(model)))
    first.grad = None
    outcome = Outcome(case, model, request, small, [str(w.message) for w in caught])
    chosen = {**CHECKS, **({"exports": exports} if onnx else {})}
    for name, holds in chosen.items():
        if only in (None, name):
            faults += _faults(name, holds(outcome))
    return faults


def _faults(name: str, found: Iterator[str]) -> list[Fault]:
    faults = []
    try:
        for facts in found:
            faults.append(Fault(name, facts))
    except Exception as error:
        faults.append(Fault(name, f"{type(error).__name__}: {str(error)[:400]}"))
    return faults


def nothing_free(case: Case) -> bool:
    """Whether outputs and the request fix every width."""
    fixed = walk(case.network)[1].fixed
    ignored = case.request.get("ignore", ())
    free = [t for name, (t, _, _) in owners_of(case.network).items() if name not in fixed]
    return all(any(tensor.startswith(f"{layer}.") for layer in ignored) for tensor in free)


def _out_of_reach(case: Case, model: Net, said: str) -> list[Fault]:
    """A budget is refused only where the smallest network exceeds it."""
    if case.request.get("round_to") or case.request.get("ignore"):
        return []
    demands = walk(case.network)[1]
    least = {
        name: width if name in demands.fixed else demands.multiples.get(name, 1)
        for name, width in case.network.widths.items()
    }
    network = case.network.at(least)
    smallest = build(network)
    caps = caps_of(case.request)
    reach = {
        "params": params_of(smallest) / params_of(model),
        "macs": macs_of(network, smallest) / macs_of(case.network, model),
    }
    if all(reach[kind] <= cap for kind, cap in caps.items()):
        return [Fault("budget", f"refused, and {least} keeps {reach}: {said[:200]}")]
    return []

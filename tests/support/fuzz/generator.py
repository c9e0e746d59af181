"""Draw a network and a request from a seed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import torch

from .blocks import BLOCKS, NORMS, STEMS
from .description import Block, Demands, Description, Form, single, value
from .initial import BIASES, WEIGHTS
from .network import build, owners_of, walk

#: The most that any map may have, so that a thousand are checked in minutes.
_MOST_CHANNELS = 900


@dataclass(frozen=True)
class Case:
    """One network, and the keyword arguments of the crop asked of it."""

    seed: int
    network: Description
    request: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return json.dumps({"network": asdict(self.network), "request": self.request})


def draw(seed: int) -> Case:
    """The case of a seed: always the same."""
    random = Random(seed)
    network = _network(random, seed)
    while not _runs(network):
        network = _network(random, seed)
    return Case(seed, network, _request(random, network))


def _runs(network: Description) -> bool:
    """Whether one image is enough for it: a norm of a map of one place has nothing to go by."""
    with torch.no_grad():
        try:
            build(network)(torch.zeros(1, *network.image))
        except ValueError as error:
            if "Expected more than 1" in str(error):
                return False
            raise
    return True


def _network(random: Random, seed: int) -> Description:
    d = random.choices((1, 2, 3), (1, 8, 1))[0]
    size = {1: (12, 40), 2: (7, 15), 3: (5, 7)}[d]
    image = (random.choice((1, 3, 3, 4)), *(random.randint(*size) for _ in range(d)))
    norms = random.choices(NORMS, k=random.choice((1, 1, 2)))
    blocks: list[Block] = []
    form: Form = {"": image[0]}
    demands, room, names = Demands(), 0, 0
    for _ in range(random.choice((1, 2, 3, 4, 5, 6, 8))):
        kinds = [k for k, c in BLOCKS.items() if d in c.dimensions and (blocks or k in STEMS)]
        kind = random.choice(kinds)
        if room > 0 and BLOCKS[kind].grows:  # sizes grow only twice
            continue
        options = BLOCKS[kind].draw(random, d, norms)
        own = tuple(f"w{names + i}" for i in range(BLOCKS[kind].count(options)))
        tried = Demands(dict(demands.multiples))
        after = BLOCKS[kind].describe(form, own, options, tried)
        if after is None or sum(after.values()) > 40:
            continue
        names, form, demands = names + len(own), after, tried
        room += BLOCKS[kind].grows
        blocks.append(Block(kind, own, options))
    if not blocks:
        return _network(random, seed)
    taps = tuple(
        (at, random.choice(("aux", "training", "feature"))) for at in range(len(blocks)) if random.random() < 0.1
    )
    network = Description(
        image=image,
        blocks=tuple(blocks),
        widths={},
        head=random.choices(("pooled", "dense", "flat", "none"), (6, 2, 2, 1))[0],
        container=random.choice(("tuple", "dict")),
        weights=random.choice(list(WEIGHTS)),
        biases=random.choice(list(BIASES)),
        seed=seed,
    )
    network = _with_taps(network, taps)
    return network.at(_widths(random, network, d))


def _with_taps(network: Description, taps: tuple[tuple[int, str], ...]) -> Description:
    """With the taps, and without those (or the missing head) that fix no single width."""
    forms = walk(replace(network, head="pooled"))[0]
    kept = tuple((at, kind) for at, kind in taps if kind != "feature" or single(forms[at]))
    return replace(
        network, taps=kept, head="dense" if network.head == "none" and not single(forms[-1]) else network.head
    )


def _widths(random: Random, network: Description, d: int) -> dict[str, int]:
    forms, demands = walk(network)
    scale = random.choice((4, 16, 48, 48, 120, 300)) if d < 3 else 12
    widths = {}
    for name in owners_of(network):
        multiple = demands.multiples.get(name, 1)
        # A width of one unit cannot vary, and a depthwise layer of one channel is an ordinary one: from two on.
        most = max(2, scale // multiple)
        widths[name] = multiple * random.choice((random.randint(2, most), random.randint(2, max(2, most // 4)), most))
    while max(value(form, widths) for form in forms) > _MOST_CHANNELS:
        widths = {
            name: max(2, width // 2 // demands.multiples.get(name, 1)) * demands.multiples.get(name, 1)
            for name, width in widths.items()
        }
        if all(width == 2 * demands.multiples.get(name, 1) for name, width in widths.items()):
            break
    return widths


def _request(random: Random, network: Description) -> dict[str, Any]:
    request: dict[str, Any] = {"input_shape": list(network.image)}
    share = round(random.choice((random.uniform(0.05, 0.95), random.uniform(0.2, 0.6))), 3)
    other = round(random.uniform(0.1, 0.9), 3)
    caps = random.choice(("ratio", "params", "macs", "both"))
    request.update({"params": share, "macs": other} if caps == "both" else {caps: share})
    if random.random() < 0.2:
        request["round_to"] = random.choice((1, 2, 3, 4, 8, 16))
    elif random.random() < 0.1:
        request["target"] = random.choice(("onnxruntime", "tensorrt"))
    request["scorer"] = random.choices(("synexp", "uniform", "densities"), (5, 3, 2))[0]
    if random.random() < 0.1:
        tensor = random.choice([tensor for tensor, _, _ in owners_of(network).values()] or [""])
        if tensor and "Bare" not in {b.kind for b in network.blocks}:
            request["ignore"] = [tensor.rpartition(".")[0]]
    if random.random() < 0.08:
        request["widen"] = True
    return request

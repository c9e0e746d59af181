"""Make a case that fails smaller: fewer blocks, fewer outputs, plainer requests, narrower widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .description import Description
from .generator import Case
from .network import owners_of, walk


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found that still fails; each step takes the first simpler case that does."""
    while True:
        smaller = next((c for c in simpler(case) if fails(c)), None)
        if smaller is None:
            return case
        case = smaller


def simpler(case: Case) -> Iterator[Case]:
    """Cases one step simpler that are networks at all."""
    for network in _networks(case.network):
        try:
            walk(network)
        except ValueError:
            continue
        names = [name for block in network.blocks for name in block.widths]
        yield replace(case, network=network.at({name: network.widths[name] for name in names}))
    for key in ("round_to", "target", "ignore", "widen"):
        if key in case.request:
            yield replace(case, request={k: v for k, v in case.request.items() if k != key})
    if case.request.get("scorer") != "uniform":
        yield replace(case, request={**case.request, "scorer": "uniform"})


def _networks(network: Description) -> Iterator[Description]:
    blocks = network.blocks
    for number in range(len(blocks)):
        if len(blocks) > 1:
            yield replace(network, blocks=blocks[:number] + blocks[number + 1 :], taps=())
    if network.taps:
        yield replace(network, taps=())
    if network.head != "pooled":
        yield replace(network, head="pooled")
    for number, block in enumerate(blocks):
        plain = {"norm": "none", "act": "none", "bias": False, "k": 1, "stride": 1}
        for key, simple in plain.items():
            if block.options.get(key, simple) != simple:
                one = replace(block, options={**block.options, key: simple})
                yield replace(network, blocks=(*blocks[:number], one, *blocks[number + 1 :]))
    multiples = walk(network)[1].multiples
    for name in owners_of(network):
        unit = multiples.get(name, 1)
        half = max(2, network.widths[name] // unit // 2) * unit
        if half < network.widths[name]:
            yield network.at({**network.widths, name: half})

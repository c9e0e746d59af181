"""Less memory for activations: compute them again in the backward pass instead of keeping them.

What is computed stays the same. A block that runs twice would move the running statistics of its
norms twice, so the second run leaves its buffers as it found them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from precrop.errors import RecipeError


def blocks(network: nn.Module) -> list[nn.Module]:
    """The parts that are computed again as one: the outermost members of sequences that have parts themselves."""
    found: list[nn.Module] = []

    def visit(module: nn.Module, listed: bool) -> None:
        parts = list(module.children())
        sequence = isinstance(module, nn.Sequential | nn.ModuleList)
        # A sequence within a sequence is a stage where its own members have parts, else a block.
        stage = sequence and any(True for part in parts for _ in part.children())
        if listed and parts and not stage and any(True for _ in module.parameters()):
            found.append(module)
            return
        for part in parts:
            visit(part, sequence)

    visit(network, False)
    return found


@contextmanager
def checkpointed(network: nn.Module) -> Iterator[None]:
    """While the block runs, `network` keeps only what enters its `blocks`. Raises `RecipeError` without any."""
    found = blocks(network)
    if not found:
        raise RecipeError(
            f"execution.activation_checkpointing: {type(network).__name__} has no repeated blocks to compute again. "
            "Use 'activation_memory' with 'compile: true'."
        )
    for block in found:
        vars(block)["forward"] = _twice(block, block.forward)
    try:
        yield
    finally:
        for block in found:
            del vars(block)["forward"]


def _twice(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_kept(block)

    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)

    return run


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    kept: list[tuple[Tensor, Tensor]] = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, before in kept:
            # Past autograd's count of changes: the value is what it was.
            buffer.data.copy_(before)

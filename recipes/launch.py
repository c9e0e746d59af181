"""Several processes for one training: started by ``torchrun``, or by ``precrop train`` through it.

Every process runs the whole recipe; the first one alone writes files and talks to the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed

from precrop.errors import RecipeError

if TYPE_CHECKING:
    from precrop.recipes.sections import Execution

T = TypeVar("T")
TORCHRUN = "torchrun --nproc_per_node {devices} --nnodes {nodes} --rdzv_endpoint HOST:PORT -m precrop train RECIPE"


@dataclass(frozen=True)
class Processes:
    """This process among those of a training: ``rank`` of ``count``, of which ``local_count`` on this machine."""

    rank: int
    count: int
    local_count: int

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def agree(self, value: T) -> T:
        """The first process's value, in every process."""
        if self.count == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            torch.distributed.barrier()


def processes() -> Processes:
    """As ``torchrun`` said in the environment; one process without it."""
    count = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    if count == 1:
        return Processes(0, 1, 1)
    return Processes(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_WORLD_SIZE", count)))


@contextmanager
def joined(execution: Execution) -> Iterator[Processes]:
    """The processes of a training, connected while the block runs.

    Raises `RecipeError` when ``execution`` asks for others than those that were started.
    """
    group = processes()
    nodes = group.count // group.local_count
    for key, asked, found in (("devices", execution.devices, group.local_count), ("nodes", execution.nodes, nodes)):
        if asked not in (None, found):
            started = TORCHRUN.format(devices=execution.devices or "N", nodes=execution.nodes or 1)
            raise RecipeError(
                f"execution.{key}: the recipe says {asked}, and {found} {'was' if found == 1 else 'were'} started. "
                f"Start it with: {started}"
            )
    if group.count == 1 or torch.distributed.is_initialized():
        yield group
        return
    if torch.cuda.is_available() and execution.accelerator != "cpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    else:
        torch.distributed.init_process_group("gloo")
    try:
        yield group
    finally:
        torch.distributed.destroy_process_group()


def to_start(execution: Execution) -> int:
    """How many processes this machine is to start for a recipe; 1 when they are started already, or one is enough."""
    if "LOCAL_RANK" in os.environ or (execution.nodes or 1) > 1:
        return 1
    if execution.devices is not None:
        return execution.devices
    if execution.accelerator == "cpu" or not torch.cuda.is_available():
        return 1
    return torch.cuda.device_count()


def start(count: int, arguments: Sequence[str]) -> int:
    """Run ``precrop`` with these arguments in ``count`` processes of this machine; its exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    return subprocess.run([*command, "-m", "precrop", *arguments], check=False).returncode

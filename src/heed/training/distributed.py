"""Several processes as one: who is in the team, how its members add up numbers and hand each other bytes.

`torchrun --nproc-per-node 2 -m heed train …` starts the processes and tells each its rank; `join` makes a `Team` of
them. A process on its own is a team of one, and every method here then does nothing, so the rest of training is
written once. What travels is tensors and bytes, never pickles. A member that dies ends the job: the others find out
when they next wait for it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from heed.backends.fused_weights import keys_values_of_memory
from heed.errors import TrainingError
from heed.model.transformer import Transformer

_TIMEOUT = timedelta(
    hours=12
)  # the others wait while the first prepares text; the death of a member is noticed at once


@dataclass(frozen=True)
class Team:
    """The processes of one job, as one of them sees it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that reads text, writes files and talks."""
        return self.rank == 0

    def device(self) -> torch.device:
        """The device of this process: a GPU of its own where there are GPUs."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def add_up(self, *numbers: float | int) -> list[float]:
        """The sum over all processes of each number."""
        total = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            with _noticing_deaths():
                distributed.all_reduce(total)
        return total.tolist()

    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes; one that has none counts as zero."""
        if self.size == 1:
            return
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _noticing_deaths():
            distributed.all_reduce(flat)
        pieces = flat.split([gradient.numel() for gradient in gradients])
        for one, piece in zip(parameters, pieces, strict=True):
            one.grad = piece.view_as(one)

    def from_first(self, content: bytes) -> bytes:
        """What the first process gave, in all of them; what the others give does not matter."""
        return self.gather(content)[0]

    def gather(self, content: bytes) -> list[bytes]:
        """What every process gave, by rank, in all of them."""
        if self.size == 1:
            return [content]
        own = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _noticing_deaths():
            distributed.all_gather(lengths, torch.tensor([len(own)]))
            longest = max(int(length) for length in lengths)
            rooms = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            distributed.all_gather(rooms, nn.functional.pad(own, (0, longest - len(own))))
        return [room[: int(length)].numpy().tobytes() for room, length in zip(rooms, lengths, strict=True)]


@contextmanager
def join() -> Iterator[Team]:
    """The team that torchrun started this process in, or a team of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team()
        return
    team = Team(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]))
    if torch.cuda.is_available():
        torch.cuda.set_device(team.device())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield team
    finally:
        distributed.destroy_process_group()


@contextmanager
def _noticing_deaths() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"another process of this job has ended, so this one cannot go on: {str(error).splitlines()[0]}. "
            "Start the job again with --resume"
        ) from error


def shard(model: Transformer, team: Team) -> None:
    """Let each process hold a share of every weight, and gather a layer only while it works (FSDP2).

    A unit is gathered when it is called. The keys and values of cross-attention are asked for before their layer is
    called, so they are units of their own.
    """
    mesh = init_device_mesh(team.device().type, (team.size,))
    encoder = [] if model.encoder is None else list(model.encoder.layers)
    decoder = [] if model.decoder is None else list(model.decoder.layers)
    keys_values = [] if model.decoder is None else keys_values_of_memory(model.decoder)
    for unit in (*encoder, *keys_values, *decoder, model):
        fully_shard(unit, mesh=mesh)
    for method in ("encode", "start", "step"):
        register_fsdp_forward_method(model, method)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered if it is shared out; every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor that every process has, shared out as `pattern` is: each keeps its share, nothing is sent."""
    if isinstance(pattern, DTensor):
        own = tensor.to(pattern.device)
        return distribute_tensor(own, pattern.device_mesh, pattern.placements, src_data_rank=None)
    return tensor

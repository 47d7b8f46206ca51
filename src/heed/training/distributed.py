"""Distributed training: collective operations between the processes of a job, and sharded weights (FSDP2).

`torchrun --nproc-per-node 2 -m heed train …` starts the processes and sets the rank of each; `join` makes a
`ProcessGroup` of them. A single process is a group of one, in which every method does nothing, so the rest of training
is written once. Only tensors and bytes are sent, never pickles. A process that dies ends the job: the others notice
when they next wait for it.

What only sharded weights need is imported where it is used: it takes half a second.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

from heed.backends.fused_weights import cross_kv_projections
from heed.backends.select import has_gpu
from heed.errors import TrainingError
from heed.model.transformer import Transformer

_TIMEOUT = timedelta(hours=12)  # ranks wait while rank 0 prepares text; a process that dies is noticed at once


@dataclass(frozen=True)
class ProcessGroup:
    """One process of a job: its rank, the number of processes, and the collectives between them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reads text, writes files and reports."""
        return self.rank == 0

    def device(self) -> torch.device:
        """This process's device: a GPU of its own where there are GPUs."""
        return torch.device("cuda", self.local_rank) if has_gpu() else torch.device("cpu")

    def sum(self, *numbers: float | int) -> list[float]:
        """Each number summed over all processes."""
        total = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            with _collective_errors():
                distributed.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes; a missing one counts as zero."""
        if self.size == 1:
            return
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _collective_errors():
            distributed.all_reduce(flat)
        summed = flat.split([gradient.numel() for gradient in gradients])
        for weight, gradient in zip(parameters, summed, strict=True):
            weight.grad = gradient.view_as(weight)

    def broadcast(self, content: bytes) -> bytes:
        """Rank 0's content, in all processes; that of the others is ignored."""
        return self.gather(content)[0]

    def gather(self, content: bytes) -> list[bytes]:
        """All-gather: every process's content, by rank, in all processes."""
        if self.size == 1:
            return [content]
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _collective_errors():
            distributed.all_gather(lengths, torch.tensor([len(sent)]))
            longest = max(int(length) for length in lengths)
            padded = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            distributed.all_gather(padded, nn.functional.pad(sent, (0, longest - len(sent))))
        return [received[: int(length)].numpy().tobytes() for received, length in zip(padded, lengths, strict=True)]


@contextmanager
def join() -> Iterator[ProcessGroup]:
    """The group that torchrun started this process in, or a group of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ProcessGroup()
        return
    group = ProcessGroup(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]))
    if has_gpu():
        torch.cuda.set_device(group.device())
    backend = "cpu:gloo,cuda:nccl" if has_gpu() else "gloo"
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield group
    finally:
        distributed.destroy_process_group()


@contextmanager
def _collective_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"another process of this job has ended, so this one cannot continue: {str(error).splitlines()[0]}. "
            "Start the job again and resume it (--resume, or resume=True)"
        ) from error


def shard(model: Transformer, group: ProcessGroup) -> None:
    """Shard every weight over the processes with FSDP2, one unit per layer.

    A unit is gathered while it is called. The key and value projections of cross-attention are called before their
    layer, so they are units of their own.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # noqa: PLC0415

    mesh = init_device_mesh(group.device().type, (group.size,))
    encoder, decoder = model.attention_stacks()
    encoder_layers = [] if encoder is None else list(encoder.layers)
    decoder_layers = [] if decoder is None else list(decoder.layers)
    keys_values = [] if decoder is None else cross_kv_projections(decoder)
    for unit in (*encoder_layers, *keys_values, *decoder_layers, model):
        fully_shard(unit, mesh=mesh)
    for method in ("encode", "start", "step"):
        register_fsdp_forward_method(model, method)


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor, all-gathered if it is sharded: then all processes must call this."""
    if not distributed.is_initialized():
        return tensor
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A full tensor, the same in every process, sharded as `pattern` is: each keeps its shard, nothing is sent."""
    if not distributed.is_initialized():
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: PLC0415

    if isinstance(pattern, DTensor):
        full = tensor.to(pattern.device)
        return distribute_tensor(full, pattern.device_mesh, pattern.placements, src_data_rank=None)
    return tensor

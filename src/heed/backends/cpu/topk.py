"""The likeliest words of a vocabulary in compiled code, on a CPU: `csrc/topk.h` from Python.

The twin is a stable sort.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.packed_linear import can_compile, native, threads_for
from heed.backends.cpu.pointers import pointer


def can_rank(numbers: Float[Tensor, "R V"]) -> bool:
    """Whether compiled code ranks these: they are float32, on a CPU, a row after another, and there is a compiler."""
    return numbers.is_contiguous() and can_compile(numbers)


def ranked(numbers: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` largest of each row, best first, and their places; of equals the first. What is nan comes last."""
    rows, words = numbers.shape
    values = torch.empty(rows, count, dtype=torch.float32, device="cpu")
    places = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    native().heed_rank(
        pointer(numbers, torch.float32, rows, words), rows, words, count, pointer(values, torch.float32, rows, count),
        pointer(places, torch.int64, rows, count), threads_for(numbers.nbytes),
    )  # fmt: skip
    return values, places

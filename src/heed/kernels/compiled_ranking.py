"""The likeliest words of a vocabulary in compiled code, on a CPU: `native/rank.h` from Python.

The twin is a stable sort.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.kernels.compiled_products import can_compile, native, threads_for


def can_rank(numbers: Float[Tensor, "R V"]) -> bool:
    """Whether compiled code ranks these: they are float32, on a CPU, a row after another, and there is a compiler."""
    return numbers.is_contiguous() and can_compile(numbers)


def ranked(numbers: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` largest of each row, best first, and their places; of equals the first. What is nan comes last."""
    rows, words = numbers.shape
    values, places = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
    threads = threads_for(numbers.nbytes)
    native().heed_rank(numbers.data_ptr(), rows, words, count, values.data_ptr(), places.data_ptr(), threads)
    return values, places

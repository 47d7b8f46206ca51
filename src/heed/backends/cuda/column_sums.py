"""Sums over the rows of a matrix, as the gradients of biases and of layer-norm weights are.

torch's own reduction of a tall, narrow bfloat16 matrix takes several times as long as reading it. Two kernels: many
programs compute partial sums of their rows, then few programs add those up. The same sums in every run.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.triton import training as programs

_PROGRAMS = 256  # partial sums at most
_TILE = {"BLOCK_M": 64, "BLOCK_D": 64, "num_warps": 4}
_LAST_TILE = {"BLOCK_M": 512, "BLOCK_D": 16, "num_warps": 8}


def column_sums(x: Float[Tensor, "N D"]) -> Float[Tensor, "D"]:
    """`x.sum(0)`, added up in float32."""
    x = x.contiguous()
    count, width = x.shape
    program_count = min(_PROGRAMS, triton.cdiv(count, _TILE["BLOCK_M"]))
    partial = torch.empty(program_count, width, dtype=torch.float32, device=x.device)
    grid = (program_count, triton.cdiv(width, _TILE["BLOCK_D"]))
    programs.column_sums[grid](x, partial, count, width, **_TILE)
    return add_partial_sums(partial, x.dtype)


def add_partial_sums(partial: Float[Tensor, "N D"], dtype: torch.dtype) -> Float[Tensor, "D"]:
    """The sums over few rows, in one kernel."""
    count, width = partial.shape
    sums = torch.empty(width, dtype=dtype, device=partial.device)
    grid = (1, triton.cdiv(width, _LAST_TILE["BLOCK_D"]))
    programs.column_sums[grid](partial, sums, count, width, **_LAST_TILE)
    return sums

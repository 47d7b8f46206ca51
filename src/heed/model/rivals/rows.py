"""Sequences as rows without gaps, for layers that read neighbours instead of attending.

Attention masks padding wherever it is; recurrence and convolution need the tokens of a sequence side by side.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from heed.model.layout import Layout, Packed

OverRows = Callable[[Float[Tensor, "B T D"], Bool[Tensor, "B T"]], Float[Tensor, "B T D"]]


def over_rows(x: Float[Tensor, "*tokens D"], layout: Layout, function: OverRows) -> Float[Tensor, "*tokens D"]:
    """Apply a function to rows of tokens followed by padding, which is and stays zero, and to their token mask."""
    rows, mask = layout.to_rows(x), layout.token_mask
    if isinstance(layout, Packed):
        return layout.from_rows(function(rows, mask))
    order = (~mask).int().argsort(stable=True, dim=1)  # the tokens of each row first
    moved = (rows * mask[..., None]).take_along_dim(order[..., None], 1)
    result = function(moved, mask.take_along_dim(order, 1))
    return layout.from_rows(result.take_along_dim(order.argsort(1)[..., None], 1) * mask[..., None])

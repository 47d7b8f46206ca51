"""Sequences as rows without gaps, for layers that read neighbours instead of attending.

Attention masks padding wherever it is; recurrence and convolution need the tokens of a sequence side by side.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from heed.model.layout import Layout, Packed

OverRows = Callable[[Float[Tensor, "B T D"]], Float[Tensor, "B T D"]]


def over_rows(x: Float[Tensor, "*tokens D"], layout: Layout, function: OverRows) -> Float[Tensor, "*tokens D"]:
    """Apply a function to rows of tokens followed by padding, which is and stays zero."""
    rows = layout.to_rows(x)
    if isinstance(layout, Packed):
        return layout.from_rows(function(rows))
    mask = layout.token_mask
    order = (~mask).int().argsort(stable=True, dim=1)  # the tokens of each row first
    moved = (rows * mask[..., None]).take_along_dim(order[..., None], 1)
    result = function(moved)
    return layout.from_rows(result.take_along_dim(order.argsort(1)[..., None], 1) * mask[..., None])

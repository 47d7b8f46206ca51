"""Products of matrices in integers of 8 bits, on a CPU: a quarter of the bytes to read, and quicker arithmetic.

Each row of a weight matrix has a scale of its own, its largest number over 127; what it is multiplied with is scaled as
it comes, by torch's fbgemm kernels. Only the products change: words, places, norms, softmax and sums stay float32. The
twin is the model itself; how far the two are apart is measured in BLEU.
"""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.errors import InputError
from heed.kernels.lean_decoder import LeanDecoder
from heed.model.transformer import Transformer
from heed.model.twin import sharing_weights

_LARGEST = 127
# For what comes, on CPUs older than VNNI: they would add up to more than their registers hold.
_ONE_BIT_LESS = not torch.cpu._is_vnni_supported()


class Int8Linear(nn.Module):
    """x Wᵀ + b, with W in integers."""

    def __init__(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> None:
        super().__init__()
        scales = weight.detach().double().abs().amax(1).clamp(min=1e-12) / _LARGEST
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # such tensors are to go some day; nothing else is as quick yet
            rounded = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """The product, rounded where the integers are."""
        return torch.ops.quantized.linear_dynamic(x, self._packed, reduce_range=_ONE_BIT_LESS)


def int8_decoder(model: Transformer) -> LeanDecoder:
    """The model's encoder and decoder with every product in integers."""
    if model.encoder is None or model.decoder is None or model.vocabulary.embedding.weight.device.type != "cpu":
        raise InputError("integers of 8 bits are for models with encoder and decoder, on a CPU")
    torch.backends.quantized.engine = "fbgemm"
    twin = sharing_weights(model).eval()
    for parent in list(twin.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear) and part is not twin.vocabulary.output:
                setattr(parent, name, Int8Linear(part.weight, part.bias))
    return LeanDecoder(twin, Int8Linear(*model.vocabulary.output_matrix()))

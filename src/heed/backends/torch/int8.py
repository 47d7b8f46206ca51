"""Products of matrices in integers of 8 bits, on a CPU: a quarter of the bytes to read, and quicker arithmetic.

Each row of a weight matrix has a scale of its own, its largest number over 127; what it is multiplied with is scaled as
it comes: each row by our own compiled code, or where that cannot be had all of it by torch's fbgemm kernels. Only
the products change: words, places, norms, softmax and sums stay float32. The twin is the model itself; how far the two
are apart is measured in BLEU.
"""

import warnings
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.artifacts.quantization import row_scales
from heed.backends.cpu.decoder import compiled_model
from heed.backends.cpu.packed_linear import Panels, integers_are_quick
from heed.backends.torch.decoder import LeanDecoder
from heed.backends.torch.linear import Product
from heed.errors import InputError
from heed.model.transformer import Transformer

# For what comes, on CPUs older than VNNI: they would add up to more than their registers hold.
_ONE_BIT_LESS = not torch.cpu._is_vnni_supported()
_MULTIPLY = torch.ops.quantized.linear_dynamic.default._op  # what is around it takes as long as a small product


class Int8Linear(nn.Module):
    """x Wᵀ + b, with W in integers."""

    def __init__(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> None:
        super().__init__()
        torch.backends.quantized.engine = "fbgemm"
        scales = row_scales(weight).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64, device="cpu")
        with warnings.catch_warnings():
            # Such tensors are to go some day; nothing else is as quick yet.
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """The product, rounded where the integers are."""
        return cast("Tensor", _MULTIPLY(x, self._packed, _ONE_BIT_LESS))


def int8_product(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Product:
    """By our own code, if it can be compiled here and has the instructions, else by torch."""
    if integers_are_quick():
        return Panels(weight, bias, integers=True)
    return Int8Linear(weight, bias).forward


def can_multiply_integers() -> bool:
    """Whether this CPU has the instructions."""
    return integers_are_quick() or "fbgemm" in torch.backends.quantized.supported_engines


def int8_decoder(model: Transformer) -> LeanDecoder:
    """The model's encoder and decoder with every product in integers."""
    if model.encoder is None or model.decoder is None or model.vocabulary.embedding.weight.device.type != "cpu":
        raise InputError("integers of 8 bits are for models with encoder and decoder, on a CPU")
    if not can_multiply_integers():
        raise InputError("this CPU lacks the instructions (AVX2) for products in integers of 8 bits: use --engine heed")
    return LeanDecoder(model, int8_product, compiled_model(model, integers=True))

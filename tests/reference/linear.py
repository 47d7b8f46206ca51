"""The int8 linear layer of the compiled code in plain torch."""

import torch
from torch import Tensor

from heed.artifacts.quantization import quantize_rows
from heed.backends.torch.linear import LinearFn


def reference_int8_linear(weight: Tensor, bias: Tensor | None) -> LinearFn:
    """Weights quantised per row of the weight, activations per row of the input; sums are exact."""
    int8_weight, scales = (torch.from_numpy(array) for array in quantize_rows(weight.detach().numpy()))

    def linear(x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        int8_x = (x * (127.0 / largest) + 128.5).floor() - 128
        output = (int8_x.double() @ int8_weight.double().T).float() * (largest / 127.0) * scales
        return output if bias is None else output + bias

    return linear

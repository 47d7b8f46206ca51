import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.backends.cuda.attention import packed_attention, packed_self_attention
from heed.backends.cuda.linear import linear
from heed.backends.fused_qkv import FusedKVDecoder, FusedQKVAttention, use_fused_projections
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder
from heed.model.layout import AttentionPattern, Packed
from heed.model.transformer import copy_sharing_weights
from tests.model.examples import COMBINATIONS, both_sides, make, packed

# torch warns when the first matmul of the backward pass runs in a thread without a CUDA context, and then creates one.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

DESIGNS = [config for config in COMBINATIONS if config.activation == "relu"]


def logits_and_gradients(model: Transformer, sides: dict[str, list[Tensor]]) -> list[Tensor]:
    """A model's logits for packed sentences, and the gradients of all weights."""
    inputs = {name: packed(rows) for name, rows in sides.items()}
    layouts = {name.removesuffix("_in") + "_layout": layout for name, (_, layout) in inputs.items()}
    logits = model(**{name: ids for name, (ids, _) in inputs.items()}, **layouts, attend=packed_attention)
    grad_output = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(logits)
    return [logits, *torch.autograd.grad(logits, list(model.parameters()), grad_output)]


@pytest.mark.parametrize("config", DESIGNS, ids=lambda config: f"{config.kind}-{config.norm}-{config.positions}")
def test_fused_projections_equal_the_models_in_value_and_gradient(config: ModelConfig, device: torch.device) -> None:
    model = make(config, device, torch.float32)
    fused = copy_sharing_weights(model)
    use_fused_projections(fused, linear, packed_self_attention)
    sides = both_sides(config, device)
    for tensor, expected in zip(logits_and_gradients(fused, sides), logits_and_gradients(model, sides), strict=True):
        torch.testing.assert_close(tensor, expected, atol=2e-4, rtol=1e-3)


def test_use_fused_projections_replaces_every_attention_and_keeps_weights_and_names() -> None:
    model = Transformer(ModelConfig(vocab_size=9, d_model=8, heads=2, d_ff=8))
    fused = copy_sharing_weights(model)
    use_fused_projections(fused, linear, packed_self_attention)
    assert isinstance(fused.decoder, FusedKVDecoder)
    assert not isinstance(model.decoder, FusedKVDecoder)
    modules = [module for module in fused.modules() if isinstance(module, MultiHeadAttention | Decoder)]
    assert all(isinstance(module, FusedQKVAttention | FusedKVDecoder) for module in modules)
    fused_weights, weights = (
        [(name, id(weight)) for name, weight in transformer.named_parameters()] for transformer in (fused, model)
    )
    assert fused_weights == weights


@pytest.mark.parametrize("causal", [False, True])
def test_packed_self_attention_has_the_same_dropout_as_packed_attention(causal: bool, device: torch.device) -> None:
    layout = Packed.from_lengths([1, 40, 3, 70, 7]).to(device)
    pattern = AttentionPattern.between(layout, layout, causal=causal)
    qkv = torch.randn(121, 3, 2, 16, device=device).requires_grad_()
    grad_output = torch.randn(121, 2, 16, device=device)

    def output_and_gradient(output: Tensor) -> list[Tensor]:
        return [output, *torch.autograd.grad(output, qkv, grad_output)]

    torch.manual_seed(5)
    results = output_and_gradient(packed_self_attention(qkv, pattern, 0.3))
    torch.manual_seed(5)
    queries, keys, values = qkv.unbind(1)
    expected = output_and_gradient(packed_attention(queries, keys, values, pattern, 0.3))
    for tensor, expected_tensor in zip(results, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor)
    assert not torch.allclose(results[0], packed_self_attention(qkv, pattern, 0.0))

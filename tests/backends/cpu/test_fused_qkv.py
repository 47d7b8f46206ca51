"""Fused QKV projections with the kernels for CPUs equal the model's layers, forward and backward."""

import pytest
import torch
from torch import Tensor

from heed import ModelConfig
from heed.backends.cpu import linear as compiled_linear
from heed.backends.cpu.attention import packed_attention, packed_self_attention
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import linear
from heed.backends.fused_qkv import FusedQKVAttention, use_fused_projections
from heed.model.attention import AttentionFn, MultiHeadAttention, plain_attention
from heed.model.layout import AttentionPattern, Packed
from heed.model.transformer import Transformer, copy_sharing_weights
from tests.model.examples import COMBINATIONS, both_sides, make, packed

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.activation == "relu"]


def logits_and_gradients(model: Transformer, sides: dict[str, list[Tensor]], attend: AttentionFn) -> list[Tensor]:
    """A model's logits for packed sentences, and the gradients of all weights."""
    inputs = {name: packed(rows) for name, rows in sides.items()}
    layouts = {name.removesuffix("_in") + "_layout": layout for name, (_, layout) in inputs.items()}
    logits = model(**{name: ids for name, (ids, _) in inputs.items()}, **layouts, attend=attend)
    grad_output = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    return [logits, *torch.autograd.grad(logits, list(model.parameters()), grad_output)]


@pytest.mark.parametrize("config", DESIGNS, ids=lambda config: f"{config.kind}-{config.norm}-{config.positions}")
def test_fused_projections_equal_the_models_in_value_and_gradient(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_MIN_MULTIPLICATIONS", 0)
    model = make(config, CPU, torch.float32)
    fused = copy_sharing_weights(model)
    use_fused_projections(fused, linear, packed_self_attention)
    attentions = [module for module in fused.modules() if isinstance(module, MultiHeadAttention)]
    assert all(isinstance(module, FusedQKVAttention) for module in attentions)
    sides = both_sides(config, CPU)
    results = logits_and_gradients(fused, sides, packed_attention)
    torch.testing.assert_close(results, logits_and_gradients(model, sides, plain_attention), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_of_fused_qkv_equals_attention_with_the_same_dropout(causal: bool) -> None:
    layout = Packed.from_lengths([1, 40, 3, 70, 7])
    pattern = AttentionPattern.between(layout, layout, causal=causal)
    qkv = torch.randn(121, 3, 2, 16).requires_grad_()
    grad_output = torch.randn(121, 2, 16)

    def output_and_gradient(output: Tensor) -> list[Tensor]:
        return [output, *torch.autograd.grad(output, qkv, grad_output)]

    torch.manual_seed(5)
    results = output_and_gradient(packed_self_attention(qkv, pattern, 0.3))
    torch.manual_seed(5)
    queries, keys, values = qkv.unbind(1)
    expected = output_and_gradient(packed_attention(queries, keys, values, pattern, 0.3))
    torch.testing.assert_close(results, expected)
    assert not torch.allclose(results[0], packed_self_attention(qkv, pattern, 0.0))

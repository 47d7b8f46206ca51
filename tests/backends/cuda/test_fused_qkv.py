import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.backends.cuda.attention import packed_attention, packed_self_attention
from heed.backends.cuda.fused_qkv import FusedKVDecoder, FusedQKVAttention, use_fused_projections
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder
from heed.model.layout import AttentionPattern, Packed
from heed.model.transformer import copy_sharing_weights
from tests.model.examples import COMBINATIONS, both_sides, make, packed

# A first product on the way back, in a thread that torch has not yet given the GPU: it says that it does so itself.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

DESIGNS = [one for one in COMBINATIONS if one.activation == "relu"]


def with_gradients(model: Transformer, sides: dict[str, list[Tensor]]) -> list[Tensor]:
    """What a model makes of packed sentences, and the gradients of all weights."""
    laid = {name: packed(rows) for name, rows in sides.items()}
    layouts = {name.removesuffix("_in") + "_layout": layout for name, (_, layout) in laid.items()}
    found = model(**{name: ids for name, (ids, _) in laid.items()}, **layouts, attend=packed_attention)
    above = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    return [found, *torch.autograd.grad(found, list(model.parameters()), above)]


@pytest.mark.parametrize("config", DESIGNS, ids=lambda one: f"{one.kind}-{one.norm}-{one.positions}")
def test_joined_products_are_those_of_the_model_in_value_and_gradient(
    config: ModelConfig, device: torch.device
) -> None:
    model = make(config, device, torch.float32)
    twin = copy_sharing_weights(model)
    use_fused_projections(twin)
    sides = both_sides(config, device)
    for own, wanted in zip(with_gradients(twin, sides), with_gradients(model, sides), strict=True):
        torch.testing.assert_close(own, wanted, atol=2e-4, rtol=1e-3)


def test_all_parts_are_replaced_and_keep_their_weights_under_their_names() -> None:
    model = Transformer(ModelConfig(vocab_size=9, d_model=8, heads=2, d_ff=8))
    twin = copy_sharing_weights(model)
    use_fused_projections(twin)
    assert isinstance(twin.decoder, FusedKVDecoder)
    assert not isinstance(model.decoder, FusedKVDecoder)
    parts = [part for part in twin.modules() if isinstance(part, MultiHeadAttention | Decoder)]
    assert all(isinstance(part, FusedQKVAttention | FusedKVDecoder) for part in parts)
    own, wanted = ([(name, id(one)) for name, one in each.named_parameters()] for each in (twin, model))
    assert own == wanted


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_drops_what_attention_drops(causal: bool, device: torch.device) -> None:
    layout = Packed.from_lengths([1, 40, 3, 70, 7]).to(device)
    pattern = AttentionPattern.between(layout, layout, causal=causal)
    three = torch.randn(121, 3, 2, 16, device=device).requires_grad_()
    above = torch.randn(121, 2, 16, device=device)

    def seeded(attended: Tensor) -> list[Tensor]:
        return [attended, *torch.autograd.grad(attended, three, above)]

    torch.manual_seed(5)
    found = seeded(packed_self_attention(three, pattern, 0.3))
    torch.manual_seed(5)
    queries, keys, values = three.unbind(1)
    wanted = seeded(packed_attention(queries, keys, values, pattern, 0.3))
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other)
    assert not torch.allclose(found[0], packed_self_attention(three, pattern, 0.0))

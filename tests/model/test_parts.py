"""The position-wise parts of the model, against their formulas."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.model.embeddings import Embeddings
from heed.model.layers import FeedForward, Residual
from tests.model.examples import SHAPE, VOCAB


def config_of(**settings: object) -> ModelConfig:
    return ModelConfig.model_validate({**SHAPE, **settings})


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "swiglu"])
def test_feed_forward_is_its_formula_in_numpy(activation: str) -> None:
    feed_forward = FeedForward(config_of(activation=activation)).double().eval()
    x = torch.randn(3, 16, dtype=torch.float64)

    def linear(layer: torch.nn.Linear, y: np.ndarray) -> np.ndarray:
        return y @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    wide = linear(feed_forward.widen, x.numpy())
    if feed_forward.gate is not None:
        gate = linear(feed_forward.gate, x.numpy())
        inner = gate / (1 + np.exp(-gate)) * wide
    elif activation == "relu":
        inner = np.maximum(0, wide)
    elif activation == "swish":
        inner = wide / (1 + np.exp(-wide))
    else:
        inner = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / np.sqrt(2)))
    np.testing.assert_allclose(feed_forward(x).detach().numpy(), linear(feed_forward.narrow, inner), atol=1e-12)


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def test_post_pre_and_sandwich_norm_are_their_formulas() -> None:
    x = torch.randn(3, 16, dtype=torch.float64)

    def make_residual(order: str) -> Residual:
        residual = Residual(config_of(norm=order)).double().eval()
        for weight in residual.parameters():
            torch.nn.init.normal_(weight)
        return residual

    post, pre, sandwich = (make_residual(order) for order in ("post", "pre", "sandwich"))
    assert sandwich.outer_norm is not None
    torch.testing.assert_close(post(x, torch.sin), layer_norm(x + x.sin(), post.norm))
    torch.testing.assert_close(pre(x, torch.sin), x + layer_norm(x, pre.norm).sin())
    torch.testing.assert_close(
        sandwich(x, torch.sin), x + layer_norm(layer_norm(x, sandwich.norm).sin(), sandwich.outer_norm)
    )


def test_embeddings_are_scaled_by_sqrt_d_model() -> None:
    embeddings = Embeddings(config_of())
    ids = torch.tensor([4, 7])
    assert torch.equal(embeddings.embed_source(ids), embeddings.embedding.weight[ids] * 4.0)
    assert torch.equal(embeddings.embed_target(ids), embeddings.embedding.weight[ids] * 4.0)


def test_tied_embeddings_are_one_matrix_and_untied_three() -> None:
    x = torch.randn(2, 16)
    tied, untied = Embeddings(config_of()), Embeddings(config_of(tie_embeddings=False))
    assert [name for name, _ in tied.named_parameters()] == ["embedding.weight"]
    assert torch.equal(tied.logits(x), x @ tied.embedding.weight.T)
    names = ["embedding.weight", "source_embedding.weight", "output.weight", "output.bias"]
    assert [name for name, _ in untied.named_parameters()] == names


def test_output_bias_adds_a_bias_to_the_tied_projection() -> None:
    embeddings = Embeddings(config_of(output_bias=True))
    assert embeddings.bias is not None
    assert not embeddings.bias.any()
    torch.nn.init.normal_(embeddings.bias)
    x = torch.randn(2, 16)
    torch.testing.assert_close(embeddings.logits(x), x @ embeddings.embedding.weight.T + embeddings.bias)
    assert Embeddings(config_of(output_bias=True, tie_embeddings=False)).bias is None  # counted in `output`


def test_separate_vocabularies_tie_only_target_and_output() -> None:
    config = config_of(source_vocab_size=30)
    model = Transformer(config)
    embeddings = model.vocabulary
    assert [tuple(weight.shape) for weight in embeddings.parameters()] == [(VOCAB, 16), (30, 16)]
    assert model(torch.tensor([[29]]), torch.tensor([[12]])).shape == (1, 1, VOCAB)


def test_initial_weights_have_the_documented_distribution() -> None:
    model = Transformer(ModelConfig(vocab_size=3000, encoder_layers=1, decoder_layers=1, positions="learned"))
    for name, weight in model.named_parameters():
        if "embedding" in name or "table" in name:
            torch.testing.assert_close(weight.std().item(), 512**-0.5, rtol=0.02, atol=0)
        elif weight.ndim == 2:
            bound = math.sqrt(6 / sum(weight.shape))
            if any(part in name for part in ("query", "key", "value")):
                bound /= math.sqrt(2)
            torch.testing.assert_close(weight.abs().max().item(), bound, rtol=0.01, atol=0)
            torch.testing.assert_close(weight.std().item(), bound / math.sqrt(3), rtol=0.02, atol=0)
        else:
            value = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            assert torch.equal(weight, torch.full_like(weight, value)), name


def test_the_seed_determines_the_initial_weights() -> None:
    def initial_weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([weight.flatten() for weight in Transformer(config_of()).parameters()])

    assert torch.equal(initial_weights(1), initial_weights(1))
    assert not torch.equal(initial_weights(1), initial_weights(2))

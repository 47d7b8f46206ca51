"""The parts that work on each token alone, against their formulas."""

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
    part = FeedForward(config_of(activation=activation)).double().eval()
    x = torch.randn(3, 16, dtype=torch.float64)

    def linear(layer: torch.nn.Linear, y: np.ndarray) -> np.ndarray:
        return y @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    wide = linear(part.widen, x.numpy())
    if part.gate is not None:
        gate = linear(part.gate, x.numpy())
        inner = gate / (1 + np.exp(-gate)) * wide
    elif activation == "relu":
        inner = np.maximum(0, wide)
    elif activation == "swish":
        inner = wide / (1 + np.exp(-wide))
    else:
        inner = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / np.sqrt(2)))
    np.testing.assert_allclose(part(x).detach().numpy(), linear(part.narrow, inner), atol=1e-12)


def normed(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def test_the_three_orders_of_residual_and_norm() -> None:
    x = torch.randn(3, 16, dtype=torch.float64)

    def around(order: str) -> Residual:
        part = Residual(config_of(norm=order)).double().eval()
        for weight in part.parameters():
            torch.nn.init.normal_(weight)
        return part

    post, pre, sandwich = around("post"), around("pre"), around("sandwich")
    assert sandwich.outer_norm is not None
    torch.testing.assert_close(post(x, torch.sin), normed(x + x.sin(), post.norm))
    torch.testing.assert_close(pre(x, torch.sin), x + normed(x, pre.norm).sin())
    torch.testing.assert_close(sandwich(x, torch.sin), x + normed(normed(x, sandwich.norm).sin(), sandwich.outer_norm))


def test_words_are_scaled_by_the_root_of_the_width() -> None:
    words = Embeddings(config_of())
    ids = torch.tensor([4, 7])
    assert torch.equal(words.embed_source(ids), words.embedding.weight[ids] * 4.0)
    assert torch.equal(words.embed_target(ids), words.embedding.weight[ids] * 4.0)


def test_tied_words_are_one_matrix_and_untied_words_three() -> None:
    x = torch.randn(2, 16)
    tied, untied = Embeddings(config_of()), Embeddings(config_of(tie_embeddings=False))
    assert [name for name, _ in tied.named_parameters()] == ["embedding.weight"]
    assert torch.equal(tied.logits(x), x @ tied.embedding.weight.T)
    names = ["embedding.weight", "source_embedding.weight", "output.weight", "output.bias"]
    assert [name for name, _ in untied.named_parameters()] == names


def test_tied_words_have_a_bias_if_asked() -> None:
    words = Embeddings(config_of(output_bias=True))
    assert words.bias is not None
    assert not words.bias.any()
    torch.nn.init.normal_(words.bias)
    x = torch.randn(2, 16)
    torch.testing.assert_close(words.logits(x), x @ words.embedding.weight.T + words.bias)
    assert Embeddings(config_of(output_bias=True, tie_embeddings=False)).bias is None  # it is in `output`


def test_two_vocabularies_share_nothing_but_the_target_side() -> None:
    config = config_of(source_vocab_size=30)
    model = Transformer(config)
    words = model.vocabulary
    assert [tuple(weight.shape) for weight in words.parameters()] == [(VOCAB, 16), (30, 16)]
    assert model(torch.tensor([[29]]), torch.tensor([[12]])).shape == (1, 1, VOCAB)


def test_initial_values_follow_the_table() -> None:
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


def test_models_start_alike_from_the_same_seed_and_not_from_another() -> None:
    def start(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([weight.flatten() for weight in Transformer(config_of()).parameters()])

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))

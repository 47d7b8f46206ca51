import numpy as np
import pytest
import torch

from heed import ModelConfig, Transformer
from heed.errors import InputError
from heed.model.positions import Rotation, sinusoids
from tests.model.examples import SHAPE, VOCAB, make


@pytest.mark.parametrize("width", [2, 16, 512])
def test_sinusoids_are_the_papers_formula_in_numpy(width: int) -> None:
    pos, i = np.ogrid[:2000, : width // 2]
    expected = np.zeros((2000, width))
    expected[:, 0::2] = np.sin(pos / 10000 ** (2 * i / width))
    expected[:, 1::2] = np.cos(pos / 10000 ** (2 * i / width))
    np.testing.assert_allclose(sinusoids(torch.arange(2000), width).numpy(), expected, atol=1e-10)


def test_rotary_positions_multiply_complex_pairs_by_a_phase() -> None:
    heads = torch.randn(5, 3, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 7, 1000])
    rotated = Rotation.at(positions, 8, torch.float64)(heads).numpy()
    pairs = heads.numpy()[..., 0::2] + 1j * heads.numpy()[..., 1::2]
    angle = positions.numpy()[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    expected = pairs * np.exp(1j * angle)[:, None, :]
    np.testing.assert_allclose(rotated[..., 0::2], expected.real, atol=1e-12)
    np.testing.assert_allclose(rotated[..., 1::2], expected.imag, atol=1e-12)


def test_rotated_dot_products_depend_on_the_relative_position_only() -> None:
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def score(query_position: int, key_position: int) -> torch.Tensor:
        rotate_q, rotate_k = (
            Rotation.at(torch.tensor([position]), 8, torch.float64) for position in (query_position, key_position)
        )
        return (rotate_q(q) * rotate_k(k)).sum()

    torch.testing.assert_close(score(3, 10), score(203, 210))
    assert not torch.isclose(score(3, 10), score(3, 11))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_sequences_longer_than_max_length_need_no_table(positions: str, device: torch.device) -> None:
    config = ModelConfig.model_validate({**SHAPE, "positions": positions, "max_length": 4})
    model = make(config, device)
    long = torch.randint(3, VOCAB, (2, 50), device=device)
    logits = model(long, long)
    assert torch.isfinite(logits).all()
    assert (logits[0, 30] != logits[0, 31]).any()


def test_sequences_longer_than_the_learned_positions_are_rejected(device: torch.device) -> None:
    config = ModelConfig.model_validate({**SHAPE, "positions": "learned", "max_length": 4})
    model = Transformer(config).to(device).eval()
    fits, long = (torch.randint(3, VOCAB, (2, length), device=device) for length in (4, 5))
    model(fits, fits)
    with pytest.raises(InputError, match="5 tokens is longer than the 4 learned positions"):
        model(long, fits)
    with pytest.raises(InputError, match="5 tokens is longer than the 4 learned positions"):
        model(fits, long)
    _, cache = model.step(fits, model.start(fits))
    with pytest.raises(InputError, match="5 tokens is longer than the 4 learned positions"):
        model.step(fits[:, :1], cache)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_reordering_the_tokens_changes_the_memory(positions: str, device: torch.device) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, "positions": positions, "kind": "encoder"}), device)
    ids = torch.tensor([[3, 4, 5]], device=device)
    assert not torch.allclose(model.encode(ids), model.encode(ids.flip(1)).flip(1))

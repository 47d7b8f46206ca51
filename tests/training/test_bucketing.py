import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.model.attention import fused_attention
from heed.training.batches import Batch, collate
from heed.training.bucketing import Shape, parts
from heed.training.tasks import task_of

WORDS = 40


def random_batch(random: np.random.Generator, sentences: int, longest: int = 30) -> Batch:
    sides = [
        [random.integers(3, WORDS, length).tolist() for length in random.integers(1, longest, sentences)]
        for _ in range(2)
    ]
    return collate(*sides)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_filling_up_changes_neither_loss_nor_gradient(r_drop: float) -> None:
    batch = random_batch(np.random.default_rng(1), 9)
    sizes = ModelConfig(
        vocab_size=WORDS, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32,
        dropout=0, attention_dropout=0, activation_dropout=0,
    )  # fmt: skip
    config = RunConfig(model=sizes, training=TrainingConfig(r_drop=r_drop))
    model = Transformer(sizes).double()
    shape = Shape.for_batches_like([batch], 50)
    filled = shape.batch(shape.fill(batch))
    assert len(filled.src) == shape.sources > len(batch.src)
    assert len(filled.tgt_in) == shape.targets > len(batch.tgt_in)
    losses = [task_of(config).loss(model, one, config, fused_attention) for one in (batch, filled)]
    torch.testing.assert_close(*losses)
    first, second = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)


@given(seed=st.integers(0, 2**32), sentences=st.integers(1, 60), others=st.integers(1, 60))
def test_whatever_is_in_a_batch_it_becomes_batches_of_one_shape(seed: int, sentences: int, others: int) -> None:
    random = np.random.default_rng(seed)
    shape = Shape.for_batches_like([random_batch(random, others)], 30)
    batch = random_batch(random, sentences)
    pieces = list(parts(batch, shape))
    for name in ("src", "tgt_in", "tgt_out"):  # nothing is lost, nothing changes places
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(batch, name))
    assert sum(piece.tokens for piece in pieces) == batch.tokens
    for piece in pieces:
        numbers = shape.fill(piece)
        assert numbers.shape == (shape.numbers,)
        filled = shape.batch(numbers)
        for layout, real in ((filled.src_layout, piece.src_layout), (filled.tgt_layout, piece.tgt_layout)):
            assert torch.equal(layout.positions[: len(real.positions)], real.positions)
            assert torch.equal(layout.sequence_ids[: len(real.sequence_ids)], real.sequence_ids)
            assert torch.equal(
                layout.positions, torch.arange(len(layout.sequence_ids)) - layout.cu_seqlens[layout.sequence_ids]
            )
        # every sentence of padding has tokens on both sides: none sees nothing
        assert set(filled.src_layout.sequence_ids.tolist()) == set(filled.tgt_layout.sequence_ids.tolist())


def test_a_batch_cut_in_two_keeps_its_sentences() -> None:
    batch = collate([[5, 6], [7], [8, 9, 10]], [[11], [12, 13], [14]])
    first, second = batch.halves()
    assert first.src.tolist() == [5, 6, 2]
    assert second.src.tolist() == [7, 2, 8, 9, 10, 2]
    assert second.tgt_layout.positions.tolist() == [0, 1, 2, 0, 1]
    assert (first.tokens, second.tokens) == (2, 5)

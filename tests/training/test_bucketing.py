import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.model.attention import fused_attention
from heed.training.batches import collate
from heed.training.bucketing import BucketShape, split_to_fit
from heed.training.tasks import task_of
from tests.training.examples import VOCABULARY, random_batch


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_padding_to_a_bucket_changes_neither_loss_nor_gradient(r_drop: float) -> None:
    batch = random_batch(np.random.default_rng(1), 9)
    sizes = ModelConfig(
        vocab_size=VOCABULARY, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32,
        dropout=0, attention_dropout=0, activation_dropout=0,
    )  # fmt: skip
    config = RunConfig(model=sizes, training=TrainingConfig(r_drop=r_drop))
    model = Transformer(sizes).double()
    shape = BucketShape.for_batches_like([batch], 50)
    padded = shape.batch(shape.pad(batch))
    assert len(padded.src) == shape.src_tokens > len(batch.src)
    assert len(padded.tgt_in) == shape.tgt_tokens > len(batch.tgt_in)
    losses = [task_of(config).loss(model, inputs, config, fused_attention) for inputs in (batch, padded)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses))


@given(seed=st.integers(0, 2**32), sentences=st.integers(1, 60), others=st.integers(1, 60))
def test_any_batch_is_split_and_padded_to_the_shape_without_loss(seed: int, sentences: int, others: int) -> None:
    random = np.random.default_rng(seed)
    shape = BucketShape.for_batches_like([random_batch(random, others)], 30)
    batch = random_batch(random, sentences)
    parts = list(split_to_fit(batch, shape))
    for name in ("src", "tgt_in", "tgt_out"):  # no token is lost or moved
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    assert sum(part.tokens for part in parts) == batch.tokens
    for part in parts:
        buffer = shape.pad(part)
        assert buffer.shape == (shape.numel,)
        padded = shape.batch(buffer)
        for layout, real in ((padded.src_layout, part.src_layout), (padded.tgt_layout, part.tgt_layout)):
            assert torch.equal(layout.positions[: len(real.positions)], real.positions)
            assert torch.equal(layout.sequence_ids[: len(real.sequence_ids)], real.sequence_ids)
            assert torch.equal(
                layout.positions, torch.arange(len(layout.sequence_ids)) - layout.cu_seqlens[layout.sequence_ids]
            )
        # every sentence of padding has tokens on both sides, so that no query is fully masked
        assert set(padded.src_layout.sequence_ids.tolist()) == set(padded.tgt_layout.sequence_ids.tolist())


def test_the_halves_of_a_batch_hold_its_sentences() -> None:
    batch = collate([[5, 6], [7], [8, 9, 10]], [[11], [12, 13], [14]])
    first, second = batch.halves()
    assert first.src.tolist() == [5, 6, 2]
    assert second.src.tolist() == [7, 2, 8, 9, 10, 2]
    assert second.tgt_layout.positions.tolist() == [0, 1, 2, 0, 1]
    assert (first.tokens, second.tokens) == (2, 5)

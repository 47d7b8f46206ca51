"""Random shapes, lengths and masks, including sequences of one token and rows of padding only."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed import ModelConfig
from heed.model.attention import plain_attention
from tests.model.examples import COMBINATIONS, FIRST_WORD, VOCAB, make

CPU = torch.device("cpu")
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
CONFIGS = [config.model_copy(update=ONE_LAYER) for config in COMBINATIONS if config.kind == "encoder-decoder"]


@st.composite
def ragged(draw: st.DrawFn, rows: int) -> torch.Tensor:
    """Ids with padding anywhere: at the end, at the start, in between, or everywhere in a row."""
    length = draw(st.integers(1, 9))
    token = st.one_of(st.just(0), st.integers(FIRST_WORD, VOCAB - 1))
    row = st.lists(token, min_size=length, max_size=length)
    return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)))


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = draw(st.integers(1, 4))
    src, tgt_in = draw(ragged(rows)), draw(ragged(rows))
    share = draw(st.floats(0, 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return src, tgt_in, torch.rand(rows, tgt_in.shape[1], src.shape[1], generator=generator) < share


@settings(max_examples=40, deadline=None)
@given(config=st.sampled_from(CONFIGS), batch=batches())
def test_fused_plain_and_cached_logits_agree_and_are_finite_for_any_mask(
    config: ModelConfig, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    src, tgt_in, mask = batch
    torch.manual_seed(0)
    model = make(config, CPU)
    fused, plain = model(src, tgt_in, cross_mask=mask), model(src, tgt_in, cross_mask=mask, attend=plain_attention)
    assert torch.isfinite(fused).all()
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-11)

    fused.square().mean().backward()
    assert all(weight.grad is None or torch.isfinite(weight.grad).all() for weight in model.parameters())

    cache, steps = model.start(src), []
    for column in range(tgt_in.shape[1]):
        logits, cache = model.step(tgt_in[:, column, None], cache, cross_mask=mask[:, column, None])
        steps.append(logits)
    token_mask = tgt_in != config.pad_id
    torch.testing.assert_close(torch.cat(steps, 1)[token_mask], fused[token_mask], rtol=0, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(config=st.sampled_from(CONFIGS), batch=batches())
def test_a_row_never_depends_on_another_row(
    config: ModelConfig, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    src, tgt_in, mask = batch
    torch.manual_seed(0)
    model = make(config, CPU)
    together = model(src, tgt_in, cross_mask=mask)
    for row in range(len(src)):
        alone = model(src[row, None], tgt_in[row, None], cross_mask=mask[row, None])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-11)

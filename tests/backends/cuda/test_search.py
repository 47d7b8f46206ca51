"""Search in static slots equals `beam_search`; the models are tables, and sentences wait for free slots."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heed.backends.cuda.search import StaticStep, static_search
from heed.backends.cuda.slots import Slots, SlotShape
from heed.backends.cuda.step_ops import SpecialIds
from heed.config import ModelConfig
from heed.decoding.search import beam_search
from heed.model.layout import Packed
from heed.search_config import SearchConfig
from tests.decoding.tables import EOS, Tables
from tests.reference.step_ops import REFERENCE

CPU = torch.device("cpu")


class TableDecoder:
    """A decoder that looks logits up in tables; the encoder output of a source is the sentence's number."""

    device = CPU
    config = ModelConfig(vocab_size=99, pad_id=0, bos_id=2, eos_id=EOS)

    def __init__(self, tables: Tables, shape: SlotShape) -> None:
        self.tables = tables
        self.slots = Slots.empty(shape, 1, (1, 1), torch.float32, CPU)
        self.steps = 0

    def encode(self, src: Tensor, _layout: Packed) -> Tensor:
        return src[:, None].float()

    def project_memory(self, memory: Tensor) -> Tensor:
        return memory[None, None, ..., None].expand(1, 2, -1, -1, -1, -1)

    def prefix(self, slot: int, hypothesis: int) -> tuple[int, ...]:
        tokens: list[int] = []
        for time in reversed(range(int(self.slots.positions[slot]))):
            tokens.insert(0, int(self.slots.tokens[slot, time, hypothesis]))
            hypothesis = int(self.slots.parents[slot, time, hypothesis])
        return tuple(tokens)

    def step(self) -> None:
        shape = self.slots.shape
        assert int(self.slots.positions.max()) < shape.target_length  # else the step would write beyond the buffers
        rows = [(slot, hypothesis) for slot in range(shape.slots) for hypothesis in range(shape.beam)]
        numbers = self.slots.cross_kv[0, 0, :, 0, 0, 0].int().tolist()
        logits = torch.tensor([self.tables.log_probs(numbers[slot] - 2, self.prefix(slot, at)) for slot, at in rows])
        REFERENCE.beam_step(logits, None, self.slots, SpecialIds(-1, -1, EOS))
        self.steps += 1


def search_in_slots(tables: Tables, lengths: list[int], config: SearchConfig, slots: int) -> tuple[list[Any], int]:
    decoder: Any = TableDecoder(tables, SlotShape(slots, config.beam, 2, max(lengths) + 1))
    sources = [[number + 2] for number in range(len(lengths))]
    hypotheses = static_search(decoder, StaticStep(decoder.slots, decoder.step), sources, lengths, config)
    return hypotheses, decoder.steps


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_static_search_equals_beam_search(data: st.DataObject) -> None:
    beam, min_length = data.draw(st.integers(1, 6), "beam"), data.draw(st.integers(0, 3), "min_length")
    config = SearchConfig(
        beam=beam,
        nbest=data.draw(st.integers(1, beam), "nbest"),
        length_penalty=data.draw(st.sampled_from((-2.0, -1.0, 0.0, 0.6, 1.0, 2.5)), "length_penalty"),
        stop=data.draw(st.sampled_from(("exact", "exact", "first")), "stop"),
        min_length=min_length,
    )
    lengths = data.draw(st.lists(st.integers(max(min_length, 1), 6), min_size=1, max_size=5), "lengths")
    tables = Tables(data.draw(st.integers(0, 10**6), "seed"), data.draw(st.integers(3, 9), "vocabulary"), eos_bonus=1.0)
    results, _ = search_in_slots(tables, lengths, config, data.draw(st.integers(1, 8), "slots"))
    expected = beam_search(tables.start(range(len(lengths))), lengths, config)
    assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results] == [
        [hypothesis.ids for hypothesis in hypotheses] for hypotheses in expected
    ]
    for hypotheses, expected_hypotheses in zip(results, expected, strict=True):
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
            [hypothesis.score for hypothesis in expected_hypotheses], abs=1e-5
        )


class EqualTokens(Tables):
    """EOS is more probable than any other token, and all other tokens are equally probable."""

    def log_probs(self, sentence: int, tokens: tuple[int, ...]) -> list[float]:  # noqa: ARG002
        return [3.0 if token == EOS else 0.0 for token in range(self.vocabulary)]


@pytest.mark.parametrize("nbest", [1, 2, 4])
def test_equal_hypotheses_are_ranked_by_the_step_they_finished_at_then_by_beam_index(nbest: int) -> None:
    config = SearchConfig(beam=4, nbest=nbest, length_penalty=0.0)
    (hypotheses,), _ = search_in_slots(EqualTokens(0, 6), [5], config, 1)
    assert [hypothesis.ids for hypothesis in hypotheses] == [(), (0,), (2,), (3,)][:nbest]


def test_a_freed_slot_is_reused_and_no_step_runs_without_a_live_sentence() -> None:
    tables = Tables(0, vocabulary=6, eos_bonus=-40)  # no hypothesis finishes before the maximum length
    results, steps = search_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 1)
    assert [len(hypotheses[0].ids) for hypotheses in results] == [3, 1, 5]
    assert steps == 4 + 2 + 6
    assert search_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 3)[1] == 6
    # With two slots, the third sentence takes the second's.
    assert search_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 2)[1] == 2 + 6


@pytest.mark.parametrize("nbest", [1, 2, 3])
def test_static_search_takes_at_most_one_step_more_than_beam_search(nbest: int) -> None:
    for seed in range(12):
        tables = Tables(seed, vocabulary=9, eos_bonus=1.0)
        config = SearchConfig(beam=4, nbest=nbest, length_penalty=1.0, stop="first" if seed % 2 else "exact")
        _, steps = search_in_slots(tables, [12], config, 1)
        beam_search(tables.start([0]), [12], config)
        assert len(tables.rows_seen) <= steps <= len(tables.rows_seen) + 1


def test_a_step_after_the_end_does_not_change_finished_sentences() -> None:
    decoder: Any = TableDecoder(Tables(4, vocabulary=6, eos_bonus=2.0), SlotShape(2, 3, 2, 9))
    static_search(decoder, StaticStep(decoder.slots, decoder.step), [[2], [3]], [8, 8], SearchConfig(beam=3, nbest=2))
    before = copy.deepcopy(decoder.slots)
    decoder.step()
    for name in (
        "finished_scores",
        "finished_log_probs",
        "finish_order",
        "finish_hypothesis",
        "tokens",
        "parents",
        "positions",
        "finished",
    ):
        assert torch.equal(getattr(before, name), getattr(decoder.slots, name))

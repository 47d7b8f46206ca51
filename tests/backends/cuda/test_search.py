"""Search in slots equals `beam_search`, whatever the model: here models are tables, and sentences wait for slots."""

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
from heed.config import ModelConfig, SearchConfig
from heed.decoding.search import beam_search
from heed.model.layout import Packed
from tests.decoding.tables import EOS, Tables
from tests.reference.step_ops import REFERENCE

CPU = torch.device("cpu")


class TableDecoder:
    """Tables in the place of a model: what it remembers of a source is the number of the sentence."""

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

    def said(self, slot: int, hypothesis: int) -> tuple[int, ...]:
        words: list[int] = []
        for time in reversed(range(int(self.slots.positions[slot]))):
            words.insert(0, int(self.slots.tokens[slot, time, hypothesis]))
            hypothesis = int(self.slots.parents[slot, time, hypothesis])
        return tuple(words)

    def step(self) -> None:
        shape = self.slots.shape
        assert int(self.slots.positions.max()) < shape.target_length  # or memory would be written that is not there
        rows = [(slot, hypothesis) for slot in range(shape.slots) for hypothesis in range(shape.beam)]
        numbers = self.slots.cross_kv[0, 0, :, 0, 0, 0].int().tolist()
        logits = torch.tensor([self.tables.log_probs(numbers[slot] - 2, self.said(slot, at)) for slot, at in rows])
        REFERENCE.beam_step(logits, None, self.slots, SpecialIds(-1, -1, EOS))
        self.steps += 1


def found_in_slots(tables: Tables, lengths: list[int], config: SearchConfig, slots: int) -> tuple[list[Any], int]:
    decoder: Any = TableDecoder(tables, SlotShape(slots, config.beam, 2, max(lengths) + 1))
    sources = [[number + 2] for number in range(len(lengths))]
    found = static_search(decoder, StaticStep(decoder.slots, decoder.step), sources, lengths, config)
    return found, decoder.steps


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_search_in_slots_is_beam_search(data: st.DataObject) -> None:
    beam, least = data.draw(st.integers(1, 6), "beam"), data.draw(st.integers(0, 3), "min_length")
    config = SearchConfig(
        beam=beam,
        nbest=data.draw(st.integers(1, beam), "nbest"),
        length_penalty=data.draw(st.sampled_from((-2.0, -1.0, 0.0, 0.6, 1.0, 2.5)), "length_penalty"),
        stop=data.draw(st.sampled_from(("exact", "exact", "first")), "stop"),
        min_length=least,
    )
    lengths = data.draw(st.lists(st.integers(max(least, 1), 6), min_size=1, max_size=5), "lengths")
    tables = Tables(data.draw(st.integers(0, 10**6), "seed"), data.draw(st.integers(3, 9), "vocabulary"), eos_bonus=1.0)
    found, _ = found_in_slots(tables, lengths, config, data.draw(st.integers(1, 8), "slots"))
    expected = beam_search(tables.start(range(len(lengths))), lengths, config)
    assert [[each.ids for each in one] for one in found] == [[each.ids for each in one] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)


class Alike(Tables):
    """The end is likelier than any word, and all words are alike."""

    def log_probs(self, sentence: int, words: tuple[int, ...]) -> list[float]:  # noqa: ARG002
        return [3.0 if word == EOS else 0.0 for word in range(self.vocabulary)]


@pytest.mark.parametrize("nbest", [1, 2, 4])
def test_equals_are_ranked_by_when_they_ended_then_by_hypothesis(nbest: int) -> None:
    config = SearchConfig(beam=4, nbest=nbest, length_penalty=0.0)
    (found,), _ = found_in_slots(Alike(0, 6), [5], config, 1)
    assert [each.ids for each in found] == [(), (0,), (2,), (3,)][:nbest]


def test_one_slot_serves_many_and_no_step_is_taken_for_nobody() -> None:
    tables = Tables(0, vocabulary=6, eos_bonus=-40)  # nobody ends before the greatest length
    found, steps = found_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 1)
    assert [len(one[0].ids) for one in found] == [3, 1, 5]
    assert steps == 4 + 2 + 6
    assert found_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 3)[1] == 6
    assert found_in_slots(tables, [3, 1, 5], SearchConfig(beam=2), 2)[1] == 2 + 6  # the last takes the second's slot


@pytest.mark.parametrize("nbest", [1, 2, 3])
def test_it_ends_when_beam_search_ends_or_a_step_later(nbest: int) -> None:
    for seed in range(12):
        tables = Tables(seed, vocabulary=9, eos_bonus=1.0)
        config = SearchConfig(beam=4, nbest=nbest, length_penalty=1.0, stop="first" if seed % 2 else "exact")
        _, steps = found_in_slots(tables, [12], config, 1)
        beam_search(tables.start([0]), [12], config)
        assert len(tables.rows_seen) <= steps <= len(tables.rows_seen) + 1


def test_a_step_too_many_changes_nothing_for_who_is_over() -> None:
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

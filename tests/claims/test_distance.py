"""The claims on distance and length: their tasks, what they measure, and how verdicts follow from the numbers."""

import random
from pathlib import Path

import pytest
import torch

from heed.claims import length_cost, positions, recall, throughput, translation_positions
from heed.claims.claim import Context
from heed.claims.cost import peak_memory
from heed.claims.length_cost import CONVOLUTION, FUSED, LSTM, PLAIN
from heed.claims.recall import FIXED, MODELS, TRANSFORMER, marked_letter
from heed.claims.result import Panel, Series
from heed.claims.strings import LETTERS, SIZES
from heed.claims.translation_positions import share_right, texts
from heed.model.attention import AttentionFn, plain_attention
from heed.model.transformer import Transformer

CPU = torch.device("cpu")


@pytest.mark.parametrize("distance", [4, 8, 32])
def test_only_the_last_token_tells_which_letter_to_recall(distance: int) -> None:
    for seed in range(50):
        source, target = marked_letter(random.Random(seed), distance, (4, 8, 32))
        assert source[-1 - distance] == target
        assert target in LETTERS
        assert source[-2 - distance] == source[-1]
        marked = [index + 1 for index, letter in enumerate(source[:-1]) if letter in "xy"]
        distances = [len(source) - 1 - index for index in marked]
        assert len(set(distances) & {4, 8, 32}) == 2
        assert min(marked) >= max(distances)


def test_gradients_reach_far_letters_through_attention_and_not_through_recurrence(tmp_path: Path) -> None:
    context = Context("smallest", tmp_path, lambda _: None)
    recalled, _, untrained = recall.measure(context)
    near, far = untrained.series[0].x
    assert all(set(series.values_at(near)) == {1.0} for series in untrained.series)
    assert untrained.named(FIXED[1]).at(far) < untrained.named(TRANSFORMER).at(far)
    assert [series.name for series in recalled.series] == list(MODELS)
    assert SIZES["smallest"].decoder_layers == 2
    assert recall.SIZES["smallest"].shape()["decoder_layers"] == 1


def test_peak_memory_counts_what_is_allocated_at_the_same_time() -> None:
    floats = torch.zeros(2**18)

    def work() -> None:
        first = floats + 1
        second = first * 2
        del first
        del second

    assert peak_memory(work, CPU) == pytest.approx(2 * floats.nbytes, rel=1e-3)  # and some scalars


def test_plain_attention_takes_memory_by_the_square_of_the_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(length_cost._LENGTHS, "smallest", (512, 1024))
    monkeypatch.setitem(length_cost._LONGEST_PLAIN, "smallest", 1024)
    _, memory = length_cost.measure(Context("smallest", tmp_path, lambda _: None))
    growth = {series.name: series.at(1024) / series.at(512) for series in memory.series}
    assert growth[PLAIN] > 3
    assert all(1.5 < growth[name] < 2.5 for name in (FUSED, CONVOLUTION, LSTM))


def test_a_length_for_which_there_is_no_memory_ends_the_curve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cost = length_cost._cost

    def limited(model: Transformer, attend: AttentionFn, length: int, device: torch.device) -> tuple[float, float]:
        if attend is plain_attention and length > 16:
            raise torch.OutOfMemoryError
        return cost(model, attend, length, device)

    monkeypatch.setattr(length_cost, "_cost", limited)
    context = Context("smallest", tmp_path, lambda _: None)
    times, _ = length_cost.measure(context)
    assert (times.named(PLAIN).x, times.named(FUSED).x) == ([16.0], [16.0, 32.0])
    assert context.notes == [f"{PLAIN} runs out of memory at 32 tokens"]


def test_the_layers_of_the_length_cost_are_equally_large() -> None:
    from heed.claims.parameters import parameters  # noqa: PLC0415

    one = {**length_cost.SHAPE, "decoder_layers": 1}
    more = {**one, "encoder_layers": 2}
    sizes = {
        mixer: parameters({**more, "mixer": mixer}) - parameters({**one, "mixer": mixer})
        for mixer in length_cost.MIXERS.values()
    }
    assert max(sizes.values()) / min(sizes.values()) < 1.02


def test_texts_have_as_many_sentences_as_asked_for() -> None:
    for text in texts("test", 5, 3):
        assert share_right(text.target, text.target) == 1.0
        assert share_right(text.target + " Oui.", text.target) == 1.0
    assert share_right("A. B. C.", "A. X. C.") == pytest.approx(2 / 3)
    assert share_right("A.", "A. B.") == 0.5
    assert len({text.source for text in texts("test", 5, 3)}) == 5


def costs(factor: float) -> list[Panel]:
    """Two panels in which attention grows by this factor for twice the length, and all else in proportion to it."""
    grown = {PLAIN: factor, FUSED: factor, CONVOLUTION: 2.0, LSTM: 2.0}
    return [Panel("x", "y", [Series(name, [1.0, 2.0], [[1.0], [by]]) for name, by in grown.items()])] * 2


def recalled(fixed: float, transformer: float) -> list[Panel]:
    far = dict.fromkeys(MODELS, 1.0) | dict.fromkeys(FIXED, fixed) | {TRANSFORMER: transformer}
    return [Panel("x", "y", [Series(name, [4.0, 8.0], [[1.0, 1.0], [x, x]]) for name, x in far.items()])] * 3


def copied(index: float) -> list[Panel]:
    shares = {"sinusoidal": 1.0, "index": index, "none": 0.0}
    return [Panel("x", "y", [Series(kind, [5.0, 10.0], [[1.0, 1.0], [x, x]]) for kind, x in shares.items()])]


def speeds(short: float, long: float) -> list[Panel]:
    others = dict.fromkeys(throughput.RECURRENT, (10.0, 10.0)) | {TRANSFORMER: (short, long)}
    return [Panel("x", "y", [Series(name, [8.0, 2048.0], [[a, a], [b, b]]) for name, (a, b) in others.items()])]


def by_sentences(none: float, longer: float) -> list[Panel]:
    kinds = dict.fromkeys(("sinusoidal", "learned", "rotary"), (0.8, longer)) | {
        "index": (none, 0.0),
        "none": (none, 0.0),
    }
    x = [1.0, 2.0, 3.0, 4.0, 8.0]
    return [
        Panel(
            "x", "y", [Series(kind, x, [[usual], [usual], [far], [far], [far]]) for kind, (usual, far) in kinds.items()]
        )
    ]


def test_verdicts_follow_from_the_numbers() -> None:
    assert length_cost.judge(costs(4.0))[0] == "holds"
    assert length_cost.judge(costs(2.6))[0] == "holds in part"
    assert length_cost.judge(costs(2.0))[0] == "does not hold here"
    assert recall.judge(recalled(0.2, 1.0))[0] == "holds"
    assert recall.judge(recalled(0.2, 0.5))[0] == "holds in part"
    assert recall.judge(recalled(1.0, 1.0))[0] == "does not hold here"
    assert "GRU, fixed vector 20% (before training 20%)" in recall.judge(recalled(0.2, 1.0))[1]
    assert positions.judge_index(copied(0.1))[0] == "holds"
    assert positions.judge_index(copied(0.9))[0] == "holds in part"
    assert positions.judge_index(copied(1.0))[0] == "does not hold here"
    assert throughput.judge(speeds(20.0, 5.0))[0] == "holds"
    assert throughput.judge(speeds(20.0, 20.0))[0] == "holds in part"
    assert throughput.judge(speeds(5.0, 5.0))[0] == "does not hold here"
    assert translation_positions.judge(by_sentences(0.1, 0.6))[0] == "holds"
    assert translation_positions.judge(by_sentences(0.1, 0.1))[0] == "holds in part"
    assert translation_positions.judge(by_sentences(0.7, 0.1))[0] == "does not hold here"

from collections import defaultdict
from math import log2
from typing import Any

import numpy as np
import pytest
import torch

from heed import ModelConfig, Transformer
from heed.errors import DataError
from heed.interpret import head_statistics as module
from heed.interpret.head_statistics import HeadStatistics, attention_statistics, batches, head_statistics
from heed.interpret.observe import observe
from heed.interpret.parts import attentions
from tests.model.examples import SHAPE, make

DRAW = np.random.default_rng(0)
LENGTHS = [(5, 4), (1, 6), (7, 1), (3, 3), (0, 2), (6, 0), (9, 9)]
PAIRS = [tuple(DRAW.integers(3, 13, length).tolist() for length in lengths) for lengths in LENGTHS]
SOURCES, TARGETS = [source for source, _ in PAIRS], [target for _, target in PAIRS]


def statistics_by_loops(model: Transformer) -> dict[tuple[str, int, str], float]:
    """The mean of each statistic, computed one sentence, row and token at a time."""
    values_by_key: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for source, target in PAIRS:
        src, tgt_in = torch.tensor([[*source, 2]]), torch.tensor([[1, *target]])
        for name, value in observe(model, src, tgt_in).items():
            path, _, part = name.rpartition(".")
            if part == "weights":
                for head, weights in enumerate(value[0].numpy(), 1):
                    for number, values in sentence_statistics(path, weights).items():
                        values_by_key[path, head, number] += values
    return {key: float(np.mean(values)) for key, values in values_by_key.items() if values}


def sentence_statistics(path: str, weights: np.ndarray) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = defaultdict(list)
    rows, columns = weights.shape
    favourites = []
    for row in range(rows):
        visible = row + 1 if path.startswith("decoder") and path.endswith("self") else columns
        if visible == 1:
            continue
        numbers["entropy"].append(-sum(w * log2(w) for w in weights[row, :visible]))
        numbers["evenness"].append(numbers["entropy"][-1] / log2(visible))
        if path.endswith("self"):
            numbers["distance"].append(sum(weights[row, column] * abs(row - column) for column in range(visible)))
            for name, column in (("previous", row - 1), ("same", row), ("next", row + 1)):
                if 0 <= column < visible:
                    numbers[name].append(weights[row, column])
        if path.startswith("decoder") and path.endswith("self"):
            numbers["start"].append(weights[row, 0])
        else:
            numbers["end"].append(weights[row, -1])
        if path.endswith("cross") and row < rows - 1:
            numbers["sharpness"].append(max(weights[row, :-1]))
            favourites.append(int(np.argmax(weights[row, :-1])))
    if favourites:
        numbers["coverage"].append(len(set(favourites)) / min(len(favourites), columns - 1))
    return numbers


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_batched_statistics_equal_those_of_plain_loops(positions: str) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, "positions": positions}), torch.device("cpu"))
    expected = statistics_by_loops(model)
    statistics = head_statistics(model, batches(model, SOURCES, TARGETS))
    assert [(head_row.path, head_row.head) for head_row in statistics] == [
        (p, h) for p in attentions(model.config) for h in (1, 2)
    ]
    for head_row in statistics:
        for name in (
            "entropy",
            "evenness",
            "distance",
            "previous",
            "same",
            "next",
            "end",
            "start",
            "sharpness",
            "coverage",
        ):
            assert getattr(head_row, name) == pytest.approx(
                expected.get((head_row.path, head_row.head, name)), abs=1e-6
            ), (head_row, name)


def test_batching_does_not_change_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(ModelConfig.model_validate(SHAPE), torch.device("cpu"))
    together = batches(model, SOURCES, TARGETS)
    assert len(together) == 1
    matrices = 2 * len(attentions(model.config))
    monkeypatch.setattr(module, "_MAX_WEIGHTS", 200 * matrices)
    split = batches(model, SOURCES, TARGETS)
    assert len(split) > 2
    for sources, targets in split:
        assert len(sources) == 1 or len(sources) * (max(map(len, sources + targets)) + 1) ** 2 <= 200
    assert sorted(pair for batch in split for pair in zip(*batch, strict=True)) == sorted(
        zip(SOURCES, TARGETS, strict=True)
    )
    for together_row, split_row in zip(head_statistics(model, together), head_statistics(model, split), strict=True):
        assert vars(together_row) == pytest.approx(vars(split_row), abs=1e-6)


def statistics_of(path: str, weights: np.ndarray) -> HeadStatistics:
    """The statistics of one hand-built matrix."""
    rows, columns = weights.shape
    is_causal = path == "decoder.1.self"
    mask = torch.ones(1, rows, columns, dtype=torch.bool)
    statistics = attention_statistics(
        path,
        torch.tensor(weights, dtype=torch.float32)[None, None],
        mask.tril() if is_causal else mask,
        torch.ones(1, rows, dtype=torch.bool),
    )
    numbers: dict[str, Any] = {
        name: float(total[0]) / int(count) for name, (total, count) in statistics.items() if count
    }
    return HeadStatistics(path, 1, **numbers)


def attending_to(shape: tuple[int, int], column: Any, share: float = 0.9) -> np.ndarray:
    """Attention weights with this share on one column per row and the rest spread evenly."""
    weights = np.full(shape, (1 - share) / shape[1])
    for row in range(shape[0]):
        weights[row, column(row) % shape[1]] += share
    return weights


ONE_COLUMN = lambda _: 2  # noqa: E731


@pytest.mark.parametrize(
    ("path", "weights", "description"),
    [
        ("encoder.1.self", attending_to((6, 6), lambda row: row - 1), "previous token"),
        ("encoder.1.self", attending_to((6, 6), lambda row: row + 1), "next token"),
        ("encoder.1.self", attending_to((6, 6), lambda row: row), "same token"),
        ("encoder.1.self", attending_to((6, 6), lambda _: -1), "end"),
        ("encoder.1.self", attending_to((6, 6), lambda _: 0, 0.1), "broad"),
        ("encoder.1.self", attending_to((6, 6), lambda row: row + 3), "mixed"),
        ("decoder.1.self", attending_to((6, 6), lambda row: row - 1).clip(0), "previous token"),
        ("decoder.1.self", attending_to((6, 6), lambda _: 0), "start"),
        ("decoder.1.cross", attending_to((6, 5), lambda row: (2, 0, 3, 1, 0, 4)[row]), "alignment"),
        ("decoder.1.cross", attending_to((6, 5), lambda _: 4), "end"),
        ("decoder.1.cross", attending_to((6, 5), ONE_COLUMN), "mixed"),
        ("decoder.1.cross", attending_to((6, 5), ONE_COLUMN, 0.0), "broad"),
    ],
)
def test_heads_are_described_by_what_they_attend_to(path: str, weights: np.ndarray, description: str) -> None:
    assert statistics_of(path, weights).description == description


def test_statistics_of_a_hand_built_matrix_are_exact() -> None:
    statistics = statistics_of("encoder.1.self", np.eye(4)[[1, 2, 3, 3]])
    assert vars(statistics) == {
        "path": "encoder.1.self",
        "head": 1,
        "entropy": 0.0,
        "evenness": 0.0,
        "distance": 0.75,
        "previous": 0.0,
        "same": 0.25,
        "next": 1.0,
        "end": 0.5,
        "start": None,
        "sharpness": None,
        "coverage": None,
    }


def test_rows_with_a_single_key_are_refused() -> None:
    model = make(ModelConfig.model_validate(SHAPE), torch.device("cpu"))
    with pytest.raises(DataError, match="no row has more than one key"):
        head_statistics(model, batches(model, [[]], [[]]))


def test_encoder_only_and_decoder_only_heads_are_measured() -> None:
    encoder_decoder = make(ModelConfig.model_validate(SHAPE), torch.device("cpu"))
    encoder = make(ModelConfig.model_validate({**SHAPE, "kind": "encoder"}), torch.device("cpu"))
    encoder_weights = {
        name: value for name, value in encoder_decoder.state_dict().items() if name in encoder.state_dict()
    }
    encoder.load_state_dict(encoder_weights)
    texts: list[list[int]] = [[5, 6, 7, 8], [9, 10], [11, 5, 6]]
    nothing: list[list[int]] = [[] for _ in texts]
    both_sides = head_statistics(encoder_decoder, batches(encoder_decoder, texts, texts))
    encoder_only = head_statistics(encoder, batches(encoder, texts, nothing))
    assert [head_row.path for head_row in encoder_only] == [
        head_row.path for head_row in both_sides if head_row.path.startswith("encoder")
    ]
    for head_row, expected_row in zip(encoder_only, both_sides, strict=False):
        assert vars(head_row) == pytest.approx(vars(expected_row))
    decoder = make(ModelConfig.model_validate({**SHAPE, "kind": "decoder"}), torch.device("cpu"))
    statistics = head_statistics(decoder, batches(decoder, nothing[:1], texts[:1]))
    weights = observe(decoder, None, torch.tensor([[1, *texts[0]]]))["decoder.1.self.weights"][0]  # (H, T, T)
    assert [head_row.start for head_row in statistics[: len(weights)]] == pytest.approx(
        weights[:, 1:, 0].mean(1).tolist()
    )

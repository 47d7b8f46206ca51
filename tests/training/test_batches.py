from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from heed.errors import DataError
from heed.text.tokenizer import BOS, EOS
from heed.training.batches import Batches, Resegment, collate, in_order
from tests.training.examples import BYTES, prepared, random_corpus, random_lines


def test_every_pair_is_in_exactly_one_batch_per_epoch(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(500)])
    for epoch in range(3):
        order = Batches(pairs, tokens_per_batch=100, seed=7).epoch(epoch)
        assert sorted(np.concatenate(order).tolist()) == list(range(500))


def test_the_order_is_a_pure_function_of_seed_and_epoch(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(500)])

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [indices.tolist() for indices in Batches(pairs, 100, seed).epoch(epoch)]

    assert order(7, 3) == order(7, 3)
    assert order(7, 3) != order(7, 4)
    assert order(7, 3) != order(8, 3)


def test_a_batch_stays_within_its_budget_and_a_longer_sentence_goes_alone(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [(random_lines(300), [*random_lines(299, 1), "y" * 45], 1.0)])
    batches = Batches(pairs, tokens_per_batch=40, seed=1)
    sizes = [(len(indices), batches.batch(indices, 0).tokens) for indices in batches.epoch(0)]
    assert all(tokens <= 40 or count == 1 for count, tokens in sizes)
    assert (1, 46) in sizes
    assert np.mean([tokens for _, tokens in sizes]) > 25


def test_a_corpus_weight_is_how_often_its_pairs_are_seen_per_epoch(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(100, 2.0), random_corpus(40, 0.5)])
    index_counts = [Counter((np.concatenate(Batches(pairs, 100, 1).epoch(epoch)) % 140).tolist()) for epoch in range(2)]
    for counts in index_counts:
        assert all(counts[index] == 2 for index in range(100))
        assert sum(counts[index] for index in range(100, 140)) == 20
    assert {index for index in index_counts[0] if index >= 100} != {index for index in index_counts[1] if index >= 100}


def test_the_decoder_input_is_the_target_shifted_right() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10, 11]])
    assert batch.src.tolist() == [5, 6, EOS, 7, EOS]
    assert batch.tgt_in.tolist() == [BOS, 8, BOS, 9, 10, 11]
    assert batch.tgt_out.tolist() == [8, EOS, 9, 10, 11, EOS]
    assert batch.src_layout.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.tgt_layout.cu_seqlens.tolist() == [0, 2, 6]
    assert batch.tokens == 6


def test_validation_batches_hold_the_pairs_in_corpus_order(tmp_path: Path) -> None:
    sources, targets = random_lines(50), random_lines(50, 1)
    pairs = prepared(tmp_path, [(sources, targets, 1.0)])
    batches = list(in_order(pairs, 100))
    assert len(batches) > 1
    assert torch.cat([batch.tgt_out for batch in batches]).tolist() == [
        token for text in targets for token in (*BYTES.encode([text])[0], EOS)
    ]


def test_empty_and_too_long_pairs_are_dropped_and_counted(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [(["ab", "", "abcdef", "c"], ["x", "y", "z", "u" * 6], 1.0)], max_tokens=5)
    assert len(pairs) == 1
    assert pairs.source[0].tolist() == BYTES.encode(["ab"])[0]
    assert str(pairs.corpora[0]).endswith("kept 1 of 4: 1 empty, 2 longer than 5 tokens")


@pytest.mark.parametrize("changed", ["text", "length"])
def test_prepared_text_is_reused_only_if_nothing_changed(tmp_path: Path, changed: str) -> None:
    def folders() -> set[str]:
        return {path.name for path in (tmp_path / "cache").iterdir()}

    prepared(tmp_path, [(["ab"], ["x"], 1.0)])
    first = folders()
    prepared(tmp_path, [(["ab"], ["x"], 1.0)])
    assert folders() == first
    prepared(tmp_path, [(["ab"], ["y" if changed == "text" else "x"], 1.0)], max_tokens=50 if changed == "text" else 49)
    assert len(folders()) == 2


def test_mixed_batches_have_sentences_of_all_lengths_and_every_pair_once(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(500)])
    spreads = {}
    for mixed in (False, True):
        batches = Batches(pairs, tokens_per_batch=200, seed=7, mixed=mixed)
        order = batches.epoch(3)
        assert sorted(np.concatenate(order).tolist()) == list(range(500))
        assert all(batches.batch(indices, 3).tokens <= 200 for indices in order)
        lengths = pairs.target.lengths()
        spreads[mixed] = np.mean([lengths[indices].std() for indices in order])
    assert spreads[True] > 3 * spreads[False]


def test_a_weight_below_one_pair_per_epoch_is_exact_over_many_epochs(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(20), random_corpus(20, 0.01)])
    batches = Batches(pairs, 100, 1)
    counts = [sum((indices >= 20).sum() for indices in batches.epoch(epoch)) for epoch in range(50)]
    assert sum(counts) == 50 * 0.01 * 20
    assert max(counts) == 1


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (0.01, r"an epoch would have 0\.2 pairs \(weight times pairs: 0\.01 x 20\).*give a larger weight"),
        (1e9, r"an epoch would have 2e\+10 pairs .*give a smaller weight"),
    ],
)
def test_weights_that_make_an_epoch_empty_or_endless_are_refused(tmp_path: Path, weight: float, message: str) -> None:
    pairs = prepared(tmp_path, [random_corpus(20, weight)])
    with pytest.raises(DataError, match=message):
        Batches(pairs, 100, 1)


def test_bpe_dropout_segments_each_repetition_of_a_weighted_pair_differently(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, [random_corpus(20, 2.5)])
    keys: list[str] = []

    def record_keys(rows: Sequence[Sequence[int]], new_keys: Sequence[str]) -> list[list[int]]:
        keys.extend(new_keys)
        return [list(row) for row in rows]

    batches = Batches(pairs, 100, 1, Resegment(record_keys, record_keys, 50))
    without_dropout = Batches(pairs, 100, 1)
    for indices in batches.epoch(3):
        assert torch.equal(batches.batch(indices, 3).src, without_dropout.batch(indices, 3).src)
    assert len(keys) == len(set(keys)) == 2 * 50

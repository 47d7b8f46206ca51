from collections import Counter
from pathlib import Path

import pytest

from heed.errors import ConfigError
from heed.text.corpus import Corpus, read_pairs
from heed.text.hold_out import hold_out, pairs_to_hold_out
from heed.text.prepare import survey


def split(
    paths: list[str], count: int, *, labelled: bool = False
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[int]]:
    """The pairs of both parts, and the number of pairs in each part's survey."""
    corpora = [Corpus(pairs=path, labelled=labelled) for path in paths]
    parts = hold_out([(corpus, survey(corpus)) for corpus in corpora], count, ("source",), lambda _: None)
    part_pairs = [[(pair.source, pair.target) for corpus, _ in part for pair in read_pairs(corpus)] for part in parts]
    return part_pairs[0], part_pairs[1], [sum(corpus_survey.pairs for _, corpus_survey in part) for part in parts]


def write(path: Path, rows: list[str]) -> str:
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def test_every_pair_is_in_one_part_and_the_choice_does_not_depend_on_order(tmp_path: Path) -> None:
    rows = [f"source {number}\ttarget {number}" for number in range(2000)]
    first, second = write(tmp_path / "a.tsv", rows[:1500]), write(tmp_path / "b.tsv", rows[1500:])
    training, held_out, counts = split([first, second], 100)
    assert counts == [1900, 100]
    assert sorted(training + held_out) == sorted(tuple(row.split("\t")) for row in rows)
    assert not set(training) & set(held_out)
    reordered = split([write(tmp_path / "c.tsv", rows[::-1])], 100)
    assert set(reordered[1]) == set(held_out)
    # Pairs are held out from both corpora in proportion to their sizes.
    assert 10 < sum(int(source.split()[1]) >= 1500 for source, _ in held_out) < 45


def test_a_repeated_pair_is_never_in_both_parts_and_a_very_frequent_one_is_not_held_out(tmp_path: Path) -> None:
    rows = [f"source {number}\ttarget {number}" for number in range(300)] * 3 + ["yes\tja"] * 500 + ["\t"] * 100
    training, held_out, counts = split([write(tmp_path / "a.tsv", rows)], 200)
    assert counts == [len(training), len(held_out)]
    assert not set(training) & set(held_out)
    assert set(Counter(held_out).values()) == {3}
    assert Counter(training)["yes", "ja"] == 500
    assert Counter(training)["", ""] == 100
    assert len(held_out) >= 3 * 199


def test_no_label_is_held_out_with_all_its_texts(tmp_path: Path) -> None:
    rows = [f"{number % 2}\ttext {number}" for number in range(300)] + [f"rare {number}\tx" for number in range(40)]
    training, held_out, _ = split([write(tmp_path / "a.tsv", rows)], 200, labelled=True)
    assert {label for _, label in held_out} == {"0", "1"}
    assert {label for _, label in training} == {"0", "1", *(f"rare {number}" for number in range(40))}


def test_five_percent_and_at_most_1000_pairs_are_held_out_by_default() -> None:
    counts = [pairs_to_hold_out(pairs, None) for pairs in (1, 999, 1000, 10_000, 29_000, 5_000_000)]
    assert counts == [0, 0, 50, 500, 1000, 1000]
    assert [pairs_to_hold_out(100, requested) for requested in (0, 7, 99)] == [0, 7, 99]
    with pytest.raises(ConfigError, match=r"data\.hold_out = 100 leaves no training data: there are 100 pairs"):
        pairs_to_hold_out(100, 100)

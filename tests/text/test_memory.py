"""The memory of `heed prepare` does not grow with the corpus."""

import os
from pathlib import Path

import numpy as np
import pytest

from heed.text.prepared import open_prepared
from tests.cli.command import fork_server
from tests.cli.forked import Forked

CHUNK = 20_000  # pairs generated at a time


def write_pairs(path: Path, pairs: int, kinds: int) -> None:
    """Pairs of random sentences; each side has its own `kinds` distinct words, with frequencies by Zipf's law."""
    rng = np.random.default_rng(pairs)
    cumulative = np.cumsum(1 / np.arange(1, kinds + 1))
    lexicons = [make_words(kinds, rng) for _ in range(2)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(pairs // CHUNK):
            lengths = rng.integers(3, 14, CHUNK)
            words_by_side = [
                lexicon[np.searchsorted(cumulative, rng.uniform(0, cumulative[-1], lengths.sum()))]
                for lexicon in lexicons
            ]
            sources, targets = (join_groups(words.tolist(), lengths, " ") for words in words_by_side)
            file.writelines(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True))


def make_words(count: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    lengths = rng.integers(2, 12, count)
    letters = rng.choice(list("abcdefghijklmnopqrstuvwxyzéß犬и"), lengths.sum()).tolist()
    return np.array(join_groups(letters, lengths, ""), np.object_)


def join_groups(items: list[str], lengths: np.ndarray[tuple[int], np.dtype[np.int64]], separator: str) -> list[str]:
    ends = np.cumsum(lengths).tolist()
    return [separator.join(items[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def prepare(pairs: Path, cache: Path, *options: str) -> int:
    """Peak memory of the `heed prepare` process in bytes, imports included."""
    arguments = ["prepare", "--pairs", str(pairs), "--cache", str(cache), *options]
    with Path(os.devnull).open("r+") as devnull:
        exit_code, memory = Forked.start(fork_server(), arguments, [devnull.fileno()] * 3).wait()
    assert exit_code == 0
    return memory * 1024


def test_six_times_the_pairs_take_hardly_more_memory(tmp_path: Path) -> None:
    """Both corpora have the same distinct words, so that the tokenizer's training takes the same memory."""
    few, many = tmp_path / "few.tsv", tmp_path / "many.tsv"
    write_pairs(few, CHUNK, kinds=2000)
    write_pairs(many, 6 * CHUNK, kinds=2000)
    memory_of_few, memory_of_many = (
        prepare(file, tmp_path / "cache", "--set", "data.vocab_size=1000") for file in (few, many)
    )
    added_bytes = many.stat().st_size - few.stat().st_size
    # As Python strings the text would take over three times its size.
    assert memory_of_many - memory_of_few < 1.5 * added_bytes


@pytest.mark.slow
@pytest.mark.parametrize("letters", [range(97, 123), range(0x4E00, 0x4E00 + 6000)])
@pytest.mark.parametrize("word_length", [8, 60])
def test_a_corpus_of_unique_words_takes_bounded_memory(tmp_path: Path, letters: range, word_length: int) -> None:
    """200,000 pairs once took 4.3 GB."""
    rng, alphabet, words = np.random.default_rng(1), list(map(chr, letters)), 60 // word_length
    lengths = np.full(2 * CHUNK * words, word_length)
    with (tmp_path / "pairs.tsv").open("w", encoding="utf-8") as file:
        for _ in range(10):
            words_of_chunk = join_groups(rng.choice(alphabet, lengths.sum()).tolist(), lengths, "")
            sides = iter(join_groups(words_of_chunk, np.full(2 * CHUNK, words), " "))
            file.writelines(f"{source}\t{next(sides)}\n" for source in sides)
    assert prepare(tmp_path / "pairs.tsv", tmp_path / "cache") < 1.3 * 2**30


@pytest.mark.slow
def test_two_million_pairs_are_prepared_in_less_than_a_gigabyte(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", 2_000_000, kinds=300_000)
    assert prepare(tmp_path / "pairs.tsv", tmp_path / "cache") < 2**30
    [prepared] = [path.parent for path in (tmp_path / "cache").glob("*/prepared.json")]
    assert len(open_prepared(prepared)) == 2_000_000

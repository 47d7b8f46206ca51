"""`heed prepare` streams: memory does not grow with the corpus."""

import os
from pathlib import Path

import numpy as np
import pytest

from heed.text.prepared import open_prepared
from tests.cli.command import fork_server
from tests.cli.forked import Forked

PIECE = 20_000  # pairs generated at a time


def write_pairs(path: Path, pairs: int, kinds: int) -> None:
    """Pairs of made-up sentences, each side of its own `kinds` words, frequent and rare as in a language (Zipf)."""
    draw = np.random.default_rng(pairs)
    shares = np.cumsum(1 / np.arange(1, kinds + 1))
    lexicons = [make_words(kinds, draw) for _ in range(2)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(pairs // PIECE):
            lengths = draw.integers(3, 14, PIECE)
            drawn = [
                lexicon[np.searchsorted(shares, draw.uniform(0, shares[-1], lengths.sum()))] for lexicon in lexicons
            ]
            sources, targets = (cut(words.tolist(), lengths, " ") for words in drawn)
            file.writelines(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True))


def make_words(count: int, draw: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    lengths = draw.integers(2, 12, count)
    letters = draw.choice(list("abcdefghijklmnopqrstuvwxyzéß犬и"), lengths.sum()).tolist()
    return np.array(cut(letters, lengths, ""), np.object_)


def cut(items: list[str], lengths: np.ndarray[tuple[int], np.dtype[np.int64]], glue: str) -> list[str]:
    ends = np.cumsum(lengths).tolist()
    return [glue.join(items[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def prepare(pairs: Path, cache: Path, *more: str) -> int:
    """The most memory that `heed prepare` takes, in bytes, torch and all."""
    arguments = ["prepare", "--pairs", str(pairs), "--cache", str(cache), *more]
    with Path(os.devnull).open("r+") as nothing:
        code, memory = Forked.start(fork_server(), arguments, [nothing.fileno()] * 3).wait()
    assert code == 0
    return memory * 1024


def test_six_times_the_pairs_take_no_more_memory(tmp_path: Path) -> None:
    """Both have the same words and vocabulary size; more words are sampled (test_tokenizer_training.py)."""
    few, many = tmp_path / "few.tsv", tmp_path / "many.tsv"
    write_pairs(few, PIECE, kinds=2000)
    write_pairs(many, 6 * PIECE, kinds=2000)
    before, after = (prepare(file, tmp_path / "cache", "--set", "data.vocab_size=1000") for file in (few, many))
    text = many.stat().st_size - few.stat().st_size
    assert after - before < 1.5 * text  # kept as strings it would take more than three times as much


@pytest.mark.slow
@pytest.mark.parametrize("letters", [range(97, 123), range(0x4E00, 0x4E00 + 6000)])
@pytest.mark.parametrize("word_length", [8, 60])
def test_words_that_never_come_twice_do_not_fill_the_memory(tmp_path: Path, letters: range, word_length: int) -> None:
    """200,000 pairs once took 4.3 GB."""
    draw, alphabet, words = np.random.default_rng(1), list(map(chr, letters)), 60 // word_length
    lengths = np.full(2 * PIECE * words, word_length)
    with (tmp_path / "pairs.tsv").open("w", encoding="utf-8") as file:
        for _ in range(10):
            drawn = cut(draw.choice(alphabet, lengths.sum()).tolist(), lengths, "")
            sides = iter(cut(drawn, np.full(2 * PIECE, words), " "))
            file.writelines(f"{source}\t{next(sides)}\n" for source in sides)
    assert prepare(tmp_path / "pairs.tsv", tmp_path / "cache") < 1.3 * 2**30


@pytest.mark.slow
def test_two_million_pairs_are_prepared_in_less_than_a_gigabyte(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tsv", 2_000_000, kinds=300_000)
    assert prepare(tmp_path / "pairs.tsv", tmp_path / "cache") < 2**30
    [prepared] = [path.parent for path in (tmp_path / "cache").glob("*/prepared.json")]
    assert len(open_prepared(prepared)) == 2_000_000

"""Vocabularies are trained on as much text as memory allows, and say so."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from heed.config import DataConfig
from heed.text import tokenizer_training as learn
from heed.text.corpus import Corpus
from heed.text.prepare import Survey, survey
from heed.text.tokenizer import Tokenizer, _split_long_words
from heed.text.tokenizer_training import Sample, TrainedTokenizers, choose_sample, train_or_load_tokenizers
from tests.text.test_prepared import replace_by

SIDES = ("source", "target")


def write(path: Path, lines: list[str]) -> tuple[Corpus, Survey]:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    corpus = Corpus(pairs=str(path))
    return corpus, survey(corpus)


def new_words(pairs: int, letters: str = "abcdefghijklmnopqrstuvwxyz", space: str = " ") -> list[str]:
    draw = random.Random(1)
    sides = (space.join("".join(draw.choices(letters, k=8)) for _ in range(5)) for _ in range(2 * pairs))
    return [f"{source}\t{next(sides)}" for source in sides]


def train(surveyed: list[tuple[Corpus, Survey]], cache: Path, **data: object) -> TrainedTokenizers:
    settings = DataConfig.model_validate({"vocab_size": 300, **data})
    return train_or_load_tokenizers(surveyed, settings, SIDES, cache, lambda: None)


def test_all_of_a_small_text_is_used_and_nothing_is_said(tmp_path: Path) -> None:
    lines = new_words(50)
    found = train([write(tmp_path / "pairs.tsv", lines)], tmp_path / "cache")
    texts = [text for line in lines for text in line.split("\t")]
    assert found.source is found.target
    assert found.source.to_json() == Tokenizer.train(texts, "bpe", 300).to_json()
    assert found.notes == []


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqrstuvwxyz", "".join(map(chr, range(0x4E00, 0x4E80)))])
@pytest.mark.parametrize("space", [" ", ""])
def test_ten_times_the_new_words_are_not_more_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letters: str, space: str
) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 20_000)
    samples = []
    for pairs in (400, 4000):
        surveyed = [write(tmp_path / "pairs.tsv", new_words(pairs, letters, space))]
        sample = choose_sample(surveyed, SIDES)
        texts = list(learn._sampled_texts(surveyed, SIDES, sample.every))
        assert sum(map(len, texts)) == sample.used
        assert sample.total == pairs * 2 * (40 + 4 * len(space))
        assert 7000 < len("".join({word for text in texts for word in text.split(" ")}).encode()) <= 20_000
        samples.append(sample)
    assert samples[1].every in (8 * samples[0].every, 16 * samples[0].every)


def test_a_language_of_few_words_is_used_whole_however_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 1000)
    surveyed = [write(tmp_path / "pairs.tsv", ["a dog runs and runs\tein Hund rennt"] * 5000)]
    assert choose_sample(surveyed, SIDES) == Sample(1, 33 * 5000, 33 * 5000)


def test_a_sample_is_spread_over_corpora_whatever_their_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_MAX_PAIRS", 250)
    lines = [f"{'abcd'[number % 4]}\t{number // 100}" for number in range(1000)]
    surveyed = [write(tmp_path / f"{part}.tsv", lines[part * 500 : (part + 1) * 500]) for part in range(2)]
    sample = choose_sample(surveyed, SIDES)
    assert sample.every == 4
    texts = list(learn._sampled_texts(surveyed, SIDES, sample.every))
    assert abs(len(texts) - 500) <= 4
    for kind in (*"abcd", *map(str, range(10))):
        assert texts.count(kind) >= 20


def test_few_huge_texts_are_never_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 100)
    monkeypatch.setattr(learn, "_MAX_CHARACTERS", 30)
    surveyed = [write(tmp_path / "pairs.tsv", [f"{'犬' * 100}{number}\tb" for number in range(3)])]
    assert 0 < choose_sample(surveyed, SIDES).used < 100


def test_the_sample_is_stated_when_it_is_taken_and_when_the_vocabulary_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 9000)
    surveyed = [write(tmp_path / "pairs.tsv", new_words(500))]
    for _ in range(2):
        notes = train(surveyed, tmp_path / "cache").notes
        assert notes == ["tokenizer trained on a sample of the text: 5,544 of 44,000 characters, one in 8 pairs"]
    apart = train(surveyed, tmp_path / "cache", separate_vocabularies=True)
    assert apart.source is not apart.target
    assert [note.removeprefix("tokenizer trained on a sample of the text: ") for note in apart.notes] == [
        "5,544 of 22,000 characters, one in 4 pairs"
    ] * 2


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "other letters": lambda path: path.write_text(path.read_text().replace("dog", "god")),
    "no tokenizer": lambda path: path.write_text(json.dumps({"checksum": 0, "note": "", "tokenizer": None})),
    "of an earlier version": lambda path: path.write_text(Tokenizer.train([], "bytes", 300).to_json()),
    "a list": lambda path: path.write_text("[" * 100_000),
    "a folder": replace_by(Path.mkdir),
    "a link": replace_by(lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_kept_vocabulary_that_was_damaged_is_trained_again_with_a_note(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    surveyed = [write(tmp_path / "pairs.tsv", ["a dog runs\tdog dog"] * 9)]
    sound = train(surveyed, tmp_path / "cache")
    [kept] = (tmp_path / "cache").glob("*.tokenizer.json")
    damage(kept)
    again = train(surveyed, tmp_path / "cache")
    assert again.source.to_json() == sound.source.to_json()
    assert again.notes[0].startswith(f"{kept} is ")
    assert "the tokenizer is trained again" in again.notes[0]
    if not kept.is_dir():
        assert train(surveyed, tmp_path / "cache").notes == []
    assert list((tmp_path / "cache").glob(".building-*")) == []


def test_a_word_without_end_is_trained_on_split_long_words() -> None:
    word = "".join(random.Random(1).choices(["ab", "cd", "犬"], k=3000))
    text = f" x {word}, {'=' * 5000} short words"
    parts = list(_split_long_words([text, "", "short"]))
    assert "".join(parts) == f"{text}short"
    assert parts[:-3] == [text[:1003], *(word[start : start + 1000] for start in range(1000, len(word) - 1000, 1000))]
    assert parts[-2:] == ["", "short"]
    trained = Tokenizer.train([text] * 3, "bpe", 500)
    assert max(map(len, trained.pieces(range(trained.vocab_size)))) > 100
    assert trained.decode(trained.encode([text])) == [text]

"""Tokenizers are trained on as much text as memory allows; a sample is reported."""

import json
import random
from pathlib import Path

import pytest

from heed.config import DataConfig
from heed.text import tokenizer_training as learn
from heed.text.corpus import Corpus
from heed.text.prepare import Survey, survey
from heed.text.tokenizer import Tokenizer, _split_long_words
from heed.text.tokenizer_training import Sample, TrainedTokenizers, choose_sample, train_or_load_tokenizers
from tests.damage import Damage, replace_by

SIDES = ("source", "target")


def write(path: Path, lines: list[str]) -> tuple[Corpus, Survey]:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    corpus = Corpus(pairs=str(path))
    return corpus, survey(corpus)


def random_pairs(pairs: int, letters: str = "abcdefghijklmnopqrstuvwxyz", space: str = " ") -> list[str]:
    rng = random.Random(1)
    sides = (space.join("".join(rng.choices(letters, k=8)) for _ in range(5)) for _ in range(2 * pairs))
    return [f"{source}\t{next(sides)}" for source in sides]


def train(surveyed: list[tuple[Corpus, Survey]], cache: Path, **data: object) -> TrainedTokenizers:
    settings = DataConfig.model_validate({"vocab_size": 300, **data})
    return train_or_load_tokenizers(surveyed, settings, SIDES, cache, lambda: None)


def test_a_small_corpus_is_used_entirely_and_without_a_note(tmp_path: Path) -> None:
    lines = random_pairs(50)
    trained = train([write(tmp_path / "pairs.tsv", lines)], tmp_path / "cache")
    texts = [text for line in lines for text in line.split("\t")]
    assert trained.source is trained.target
    assert trained.source.to_json() == Tokenizer.train(texts, "bpe", 300).to_json()
    assert trained.notes == []


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqrstuvwxyz", "".join(map(chr, range(0x4E00, 0x4E80)))])
@pytest.mark.parametrize("space", [" ", ""])
def test_the_sample_is_bounded_however_many_distinct_words_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letters: str, space: str
) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 20_000)
    samples = []
    for pairs in (400, 4000):
        surveyed = [write(tmp_path / "pairs.tsv", random_pairs(pairs, letters, space))]
        sample = choose_sample(surveyed, SIDES)
        texts = list(learn._sampled_texts(surveyed, SIDES, sample.every))
        assert sum(map(len, texts)) == sample.used
        assert sample.total == pairs * 2 * (40 + 4 * len(space))
        assert 7000 < len("".join({word for text in texts for word in text.split(" ")}).encode()) <= 20_000
        samples.append(sample)
    assert samples[1].every in (8 * samples[0].every, 16 * samples[0].every)


def test_a_long_corpus_with_few_distinct_words_is_used_entirely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 1000)
    surveyed = [write(tmp_path / "pairs.tsv", ["a dog runs and runs\tein Hund rennt"] * 5000)]
    assert choose_sample(surveyed, SIDES) == Sample(1, 33 * 5000, 33 * 5000)


def test_a_sample_is_spread_over_the_corpora_even_if_their_lines_are_periodic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "_MAX_PAIRS", 250)
    lines = [f"{'abcd'[number % 4]}\t{number // 100}" for number in range(1000)]
    surveyed = [write(tmp_path / f"{part}.tsv", lines[part * 500 : (part + 1) * 500]) for part in range(2)]
    sample = choose_sample(surveyed, SIDES)
    assert sample.every == 4
    texts = list(learn._sampled_texts(surveyed, SIDES, sample.every))
    assert abs(len(texts) - 500) <= 4
    for text in (*"abcd", *map(str, range(10))):
        assert texts.count(text) >= 20


def test_the_sample_of_a_few_huge_texts_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 100)
    monkeypatch.setattr(learn, "_MAX_CHARACTERS", 30)
    surveyed = [write(tmp_path / "pairs.tsv", [f"{'犬' * 100}{number}\tb" for number in range(3)])]
    assert 0 < choose_sample(surveyed, SIDES).used < 100


def test_the_sample_is_reported_after_training_and_when_loaded_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "_MAX_DISTINCT_BYTES", 9000)
    surveyed = [write(tmp_path / "pairs.tsv", random_pairs(500))]
    for _ in range(2):
        notes = train(surveyed, tmp_path / "cache").notes
        assert notes == ["tokenizer trained on a sample of the text: 5,544 of 44,000 characters, one in 8 pairs"]
    separate = train(surveyed, tmp_path / "cache", separate_vocabularies=True)
    assert separate.source is not separate.target
    assert [note.removeprefix("tokenizer trained on a sample of the text: ") for note in separate.notes] == [
        "5,544 of 22,000 characters, one in 4 pairs"
    ] * 2


def test_a_vocabulary_size_that_is_not_set_is_chosen_and_reported(tmp_path: Path) -> None:
    surveyed = [write(tmp_path / "pairs.tsv", ["a dog runs\tdog dog"] * 9)]
    for _ in range(2):  # trained, then from the cache
        assert train(surveyed, tmp_path / "cache", vocab_size=None).notes == [
            "data.vocab_size = 1000: at most, for 9 pairs or texts"
        ]
    assert train(surveyed, tmp_path / "cache", vocab_size=None, tokenizer="bytes").notes == []


def test_each_side_may_have_a_tokenizer_of_its_own_type(tmp_path: Path) -> None:
    surveyed = [write(tmp_path / "pairs.tsv", ["abc\tA B C", "cab\tC A B"])]
    for _ in range(2):  # trained, then from the cache
        source, target, _notes = train(
            surveyed, tmp_path / "cache", tokenizer="words", source_tokenizer="characters", vocab_size=300
        )
        assert (source.kind, target.kind) == ("characters", "words")
        assert [source.tokens(*source.encode(["cab"])), target.tokens(*target.encode(["C A B"]))] == [
            ["c", "a", "b"],
            [" C", " A", " B"],
        ]


DAMAGES: dict[str, Damage] = {
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
def test_a_damaged_tokenizer_in_the_cache_is_trained_again_with_a_note(tmp_path: Path, damage: Damage) -> None:
    surveyed = [write(tmp_path / "pairs.tsv", ["a dog runs\tdog dog"] * 9)]
    intact = train(surveyed, tmp_path / "cache")
    [cached] = (tmp_path / "cache").glob("*.tokenizer.json")
    damage(cached)
    second = train(surveyed, tmp_path / "cache")
    assert second.source.to_json() == intact.source.to_json()
    assert second.notes[0].startswith(f"{cached} is ")
    assert "the tokenizer is trained again" in second.notes[0]
    if not cached.is_dir():
        assert train(surveyed, tmp_path / "cache").notes == []
    assert list((tmp_path / "cache").glob(".building-*")) == []


def test_very_long_words_are_split_for_training() -> None:
    word = "".join(random.Random(1).choices(["ab", "cd", "犬"], k=3000))
    text = f" x {word}, {'=' * 5000} short words"
    parts = list(_split_long_words([text, "", "short"]))
    assert "".join(parts) == f"{text}short"
    assert parts[:-3] == [text[:1003], *(word[start : start + 1000] for start in range(1000, len(word) - 1000, 1000))]
    assert parts[-2:] == ["", "short"]
    trained = Tokenizer.train([text] * 3, "bpe", 500)
    assert max(map(len, trained.pieces(range(trained.vocab_size)))) > 100
    assert trained.decode(trained.encode([text])) == [text]

import os
import time
from pathlib import Path

import pytest

from heed.text.corpus import Corpus
from heed.text.prepare import Encoders, prepare, survey
from heed.text.prepared import Prepared, TokenizedSide
from heed.text.tokenizer import Tokenizer, TokenizerType
from tests.training.examples import prepared, random_corpus


def abandoned(cache: Path, name: str, hours: float) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "source.ids").write_bytes(b"half")
    then = time.time() - 3600 * hours
    for path in (folder / "source.ids", folder):
        os.utime(path, (then, then))
    return folder


def test_what_a_killed_process_left_half_built_is_swept_up_and_what_is_being_built_is_not(tmp_path: Path) -> None:
    old, young = (abandoned(tmp_path / "cache", f".building-{hours}", hours) for hours in (2, 0.5))
    done = abandoned(tmp_path / "cache", "0123456789abcdef", 2)
    prepared(tmp_path, [random_corpus(5)])
    assert not old.exists()
    assert young.exists()
    assert done.exists()


LONG = "zyxwvutsrqponmlkjihgfedcba"
LINES = ["A dog runs.", "", "A  dog", " a cat sleeps ", "\tA dog runs.", "It is it.", "dog dog dog", "\u00a0 cat", LONG]
SOURCES = [line for line in LINES for _ in LINES]
TARGETS = [line.upper() for line in LINES * len(LINES)]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def prepared_from(corpus: Corpus, encoders: Encoders, max_tokens: int, cache: Path) -> Prepared:
    return prepare([(corpus, survey(corpus))], encoders, max_tokens, cache)


def plainly(side: TokenizedSide) -> list[list[int]]:
    return [side[number].tolist() for number in range(len(side.ends))]


@pytest.mark.parametrize("kind", ["bpe", "characters"])  # one word by word, one not
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_written_is_what_the_tokenizers_say_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerType, shared: bool
) -> None:
    monkeypatch.setattr("heed.text.prepare._CHUNK_PAIRS", 7)
    source = Tokenizer.train([*LINES[:-1], *TARGETS[: len(LINES) - 1]], kind, 300)
    target = source if shared else Tokenizer.train(TARGETS, kind, 290)
    corpus = Corpus(write(tmp_path / "source", SOURCES), write(tmp_path / "target", TARGETS))
    pairs = prepared_from(corpus, Encoders(source, target), 20, tmp_path / "cache")
    both = [(source.encode([one])[0], target.encode([other])[0]) for one, other in zip(SOURCES, TARGETS, strict=True)]
    kept = [pair for pair in both if min(map(len, pair)) > 0 and max(map(len, pair)) <= 20]
    assert list(zip(plainly(pairs.source), plainly(pairs.target), strict=True)) == kept
    empty = sum(min(map(len, pair)) == 0 for pair in both)
    found = pairs.corpora[0]
    assert (found.kept, found.empty, found.too_long) == (len(kept), empty, len(both) - empty - len(kept))
    assert found.kept > 20
    assert found.too_long > 5


def test_texts_alone_are_cut_to_pieces_of_the_longest_length(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(LINES, "bpe", 300)
    corpus = Corpus(text=write(tmp_path / "text", LINES))
    pairs = prepared_from(corpus, Encoders(None, tokenizer, chunk_long_texts=True), 4, tmp_path / "cache")
    cut = [ids[start : start + 4] for ids in tokenizer.encode(LINES) for start in range(0, len(ids), 4)]
    assert plainly(pairs.target) == cut
    assert plainly(pairs.source) == [[]] * len(cut)
    assert pairs.corpora[0].empty == 1
    assert {2, 3, 4} <= {len(piece) for piece in cut}

import os
import time
from pathlib import Path

import pytest

from heed.text.corpus import Corpus
from heed.text.prepare import Encoders, prepare, survey
from heed.text.prepared import Prepared, TokenizedSide
from heed.text.tokenizer import Tokenizer, TokenizerType
from tests.training.examples import prepared, random_corpus


def unfinished_folder(cache: Path, name: str, hours: float) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "source.ids").write_bytes(b"half")
    modified = time.time() - 3600 * hours
    for path in (folder / "source.ids", folder):
        os.utime(path, (modified, modified))
    return folder


def test_old_unfinished_folders_are_removed_and_recent_ones_kept(tmp_path: Path) -> None:
    old, recent = (unfinished_folder(tmp_path / "cache", f".building-{hours}", hours) for hours in (2, 0.5))
    finished = unfinished_folder(tmp_path / "cache", "0123456789abcdef", 2)
    prepared(tmp_path, [random_corpus(5)])
    assert not old.exists()
    assert recent.exists()
    assert finished.exists()


LONG = "zyxwvutsrqponmlkjihgfedcba"
LINES = ["A dog runs.", "", "A  dog", " a cat sleeps ", "\tA dog runs.", "It is it.", "dog dog dog", "\u00a0 cat", LONG]
SOURCES = [line for line in LINES for _ in LINES]
TARGETS = [line.upper() for line in LINES * len(LINES)]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def prepared_from(corpus: Corpus, encoders: Encoders, max_tokens: int, cache: Path) -> Prepared:
    return prepare([(corpus, survey(corpus))], encoders, max_tokens, cache)


def id_lists(side: TokenizedSide) -> list[list[int]]:
    return [side[number].tolist() for number in range(len(side.ends))]


@pytest.mark.parametrize("kind", ["bpe", "characters"])  # bpe is encoded word by word, characters is not
@pytest.mark.parametrize("shared", [True, False])
def test_prepared_ids_are_the_tokenizers_ids_of_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerType, shared: bool
) -> None:
    monkeypatch.setattr("heed.text.prepare._CHUNK_PAIRS", 7)
    source = Tokenizer.train([*LINES[:-1], *TARGETS[: len(LINES) - 1]], kind, 300)
    target = source if shared else Tokenizer.train(TARGETS, kind, 290)
    corpus = Corpus(write(tmp_path / "source", SOURCES), write(tmp_path / "target", TARGETS))
    pairs = prepared_from(corpus, Encoders(source, target), 20, tmp_path / "cache")
    pair_ids = [
        (source.encode([source_line])[0], target.encode([target_line])[0])
        for source_line, target_line in zip(SOURCES, TARGETS, strict=True)
    ]
    kept = [pair for pair in pair_ids if min(map(len, pair)) > 0 and max(map(len, pair)) <= 20]
    assert list(zip(id_lists(pairs.source), id_lists(pairs.target), strict=True)) == kept
    empty = sum(min(map(len, pair)) == 0 for pair in pair_ids)
    counts = pairs.corpora[0]
    assert (counts.kept, counts.empty, counts.too_long) == (len(kept), empty, len(pair_ids) - empty - len(kept))
    assert counts.kept > 20
    assert counts.too_long > 5


def test_long_monolingual_texts_are_split_into_chunks_of_the_maximum_length(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(LINES, "bpe", 300)
    corpus = Corpus(text=write(tmp_path / "text", LINES))
    pairs = prepared_from(corpus, Encoders(None, tokenizer, chunk_long_texts=True), 4, tmp_path / "cache")
    chunks = [ids[start : start + 4] for ids in tokenizer.encode(LINES) for start in range(0, len(ids), 4)]
    assert id_lists(pairs.target) == chunks
    assert id_lists(pairs.source) == [[]] * len(chunks)
    assert pairs.corpora[0].empty == 1
    assert {2, 3, 4} <= {len(chunk) for chunk in chunks}

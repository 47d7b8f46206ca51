"""Prepared text on disk: damaged files are detected and prepared again, never used."""

import json
import multiprocessing
import os
import re
import shutil
import zlib
from collections.abc import Callable
from functools import cache
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heed.errors import DataError
from heed.text import prepare as prepare_module
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders, Survey, prepare, survey
from heed.text.prepared import FILES, Prepared, open_prepared
from heed.text.tokenizer import Tokenizer
from tests.damage import Damage, replace_by

NAMES = (*FILES, "prepared.json")


@cache
def encoders() -> Encoders:
    tokenizer = Tokenizer.train([], "bytes", 300)
    return Encoders(tokenizer, tokenizer)


def write_corpus(path: Path, pairs: int = 40) -> Corpus:
    path.write_text("".join(f"dog {number}\tHund {number * 7}\n" for number in range(pairs)), encoding="utf-8")
    return Corpus(pairs=str(path))


def prepared(corpus: Corpus, cache: Path) -> Prepared:
    return prepare([(corpus, survey(corpus))], encoders(), 20, cache)


def content(pairs: Prepared) -> tuple[object, ...]:
    sides = [array.tolist() for side in (pairs.source, pairs.target) for array in (side.ids, side.ends)]
    return sides, pairs.source.ids.dtype, pairs.corpora


def change_json(change: Callable[[dict[str, object]], object]) -> Damage:
    def damage(folder: Path) -> None:
        metadata = json.loads((folder / "prepared.json").read_text())
        change(metadata)
        (folder / "prepared.json").write_text(json.dumps(metadata))

    return damage


def swap(first: str, second: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / first).rename(folder / "aside")
        (folder / second).rename(folder / first)
        (folder / "aside").rename(folder / second)

    return damage


def replace_by_other_text(folder: Path) -> None:
    """Replace the folder by an intact folder of another text."""
    other = prepared(write_corpus(folder.parent / "other.tsv", 41), folder.parent / "other")
    shutil.rmtree(folder)
    shutil.copytree(other.folder, folder)


def flip_a_bit(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 4
    path.write_bytes(changed)


def exchange_sides(folder: Path) -> None:
    swap("source.ids", "target.ids")(folder)
    swap("source.ends", "target.ends")(folder)


def to_file(name: str, damage: Damage) -> Damage:
    return lambda folder: damage(folder / name)


FILE_DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a byte long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "all ones": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "of other bytes": lambda path: path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size)),
    "a bit flipped": flip_a_bit,
    "halves exchanged": lambda path: path.write_bytes(
        path.read_bytes()[path.stat().st_size // 2 :] + path.read_bytes()[: path.stat().st_size // 2]
    ),
    "a folder": replace_by(Path.mkdir),
    "a named pipe": replace_by(os.mkfifo),
    "a link to nowhere": replace_by(lambda path: path.symlink_to("nowhere")),
    "a link to itself": replace_by(lambda path: path.symlink_to(path)),
    "huge": lambda path: os.truncate(path, 2**40),
}
FOLDER_DAMAGES: dict[str, Damage] = {
    "sides exchanged": exchange_sides,
    "ids exchanged": swap("source.ids", "target.ids"),
    "ends exchanged": swap("source.ends", "target.ends"),
    "ids and ends exchanged": swap("source.ids", "source.ends"),
    "of other text": replace_by_other_text,
    "empty": replace_by(Path.mkdir),
    "a file": replace_by(Path.touch),
    "a link to nowhere": replace_by(lambda folder: folder.symlink_to("nowhere")),
    "no JSON": lambda folder: (folder / "prepared.json").write_text("{"),
    "JSON without end": lambda folder: (folder / "prepared.json").write_text("[" * 100_000),
    "JSON of another kind": lambda folder: (folder / "prepared.json").write_text("[1]"),
    "not UTF-8": lambda folder: (folder / "prepared.json").write_bytes(b'{"format": "\xff"}'),
    "of an earlier format": change_json(lambda json: json.update(format=2)),
    "of a later format": change_json(lambda json: json.update(format=99)),
    "wider ids": change_json(lambda json: json.update(ids="<u4")),
    "ids of an odd type": change_json(lambda json: json.update(ids="O")),
    "a key more": change_json(lambda json: json.update(more=1)),
    "a key less": change_json(lambda json: json.pop("corpora")),
    "no files": change_json(lambda json: json.update(files={})),
    "wrong counts": change_json(lambda json: json["corpora"][0].update(kept=2**50)),  # type: ignore[index]
    "negative counts": change_json(lambda json: json["corpora"][0].update(kept=-1)),  # type: ignore[index]
    "another weight": change_json(lambda json: json["corpora"][0].update(weight=7.0)),  # type: ignore[index]
    "wrong sizes": change_json(lambda json: json["files"]["source.ids"].update(size=2**51)),  # type: ignore[index]
}
DAMAGES: dict[str, Damage] = {
    **{
        f"{name} {description}": to_file(name, damage) for name in NAMES for description, damage in FILE_DAMAGES.items()
    },
    **FOLDER_DAMAGES,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_text_is_prepared_again_with_a_note_and_never_used(tmp_path: Path, damage: Damage) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv")
    intact = prepared(corpus, tmp_path / "cache")
    expected = content(intact)
    damage(intact.folder)
    with pytest.raises(DataError, match=re.escape(str(intact.folder))):
        open_prepared(intact.folder)
    second = prepared(corpus, tmp_path / "cache")
    assert content(second) == expected
    assert second.folder == intact.folder.with_name(f"{intact.folder.name}.1")
    assert [note for note in second.notes if str(intact.folder) in note and "prepared again" in note]
    third = prepared(corpus, tmp_path / "cache")  # opened from the cache, with the same note
    assert (content(third), third.folder, third.notes) == (expected, second.folder, second.notes)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["", *NAMES])
def test_unreadable_text_is_prepared_again(tmp_path: Path, name: str) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv")
    intact = prepared(corpus, tmp_path / "cache")
    expected = content(intact)
    (intact.folder / name).chmod(0)
    try:
        second = prepared(corpus, tmp_path / "cache")
    finally:
        (intact.folder / name).chmod(0o700)
    assert content(second) == expected
    assert "cannot be read: Permission denied" in second.notes[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_any_byte_is_detected(tmp_path: Path, name: str) -> None:
    intact = prepared(write_corpus(tmp_path / "pairs.tsv", 9), tmp_path / "cache")
    expected = content(intact)
    path = intact.folder / name
    original = path.read_bytes()
    for offset in range(len(original)):
        path.write_bytes(original[:offset] + bytes([original[offset] ^ 1 << offset % 8]) + original[offset + 1 :])
        try:
            assert content(open_prepared(intact.folder)) == expected  # white space in JSON
        except DataError as error:
            assert str(intact.folder) in str(error)  # noqa: PT017


def test_after_100_damaged_copies_preparing_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv")
    key = prepared(corpus, tmp_path / "cache").folder.name
    (tmp_path / "cache" / key / "source.ids").unlink()
    for number in range(1, 100):
        (tmp_path / "cache" / f"{key}.{number}").mkdir()
    with pytest.raises(DataError, match=rf"100 damaged copies of the same prepared text: delete {key}\*"):
        prepared(corpus, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_refused_by_path(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        DataError, match=f"prepared text cannot be written to {tmp_path}/cache: (File exists|Not a dir)"
    ):
        prepared(corpus, tmp_path / "cache")


def test_a_corpus_with_the_same_text_reuses_the_folder_under_its_own_name(tmp_path: Path) -> None:
    first, second = (write_corpus(tmp_path / name) for name in ("first.tsv", "second.tsv"))
    first_prepared, second_prepared = prepared(first, tmp_path / "cache"), prepared(second, tmp_path / "cache")
    assert first_prepared.folder == second_prepared.folder
    assert [prepared_text.corpora[0].name for prepared_text in (first_prepared, second_prepared)] == [
        str(tmp_path / "first.tsv"),
        second.name,
    ]
    assert second_prepared.notes == ()


def test_text_that_changes_while_it_is_prepared_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv")
    surveyed = survey(corpus)
    write_corpus(tmp_path / "pairs.tsv", 41)
    with pytest.raises(DataError, match=r"pairs\.tsv was changed while it was being prepared"):
        prepare([(corpus, surveyed)], encoders(), 20, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def rows_survey(path: Path, rows: list[tuple[str, str]]) -> Survey:
    path.write_text("".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in rows))
    return survey(Corpus(pairs=str(path)))


def test_moving_characters_between_texts_changes_the_digest(tmp_path: Path) -> None:
    """Characters, including newlines and digits, move between source, target and the next pair."""
    texts: list[list[tuple[str, str]]] = [
        [("a b", "c"), ("d", "e")],
        [("a", " bc"), ("d", "e")],
        [("a b", "cd"), ("", "e")],
        [("", "a\n0 b"), ("", "c")],
        [("", "a"), ("", "b\n0 c")],
        [("", "a\n"), ("0 b", "c")],
        [("1", "1 11"), ("1", "1")],
        [("1", "1"), ("11 1", "1")],
        [("11", "1"), ("1 1", "1")],
    ]
    digests = [rows_survey(tmp_path / "pairs.jsonl", rows).digest for rows in texts]
    assert len(set(digests)) == len(texts)


def test_a_process_that_finishes_second_uses_the_folder_of_the_first_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, build = write_corpus(tmp_path / "pairs.tsv"), prepare_module._build
    firsts, inodes = list[Prepared](), list[int]()

    def build_slowly(*arguments: Any) -> Path:
        monkeypatch.setattr(prepare_module, "_build", build)
        folder = build(*arguments)
        first = prepared(corpus, tmp_path / "cache")  # another process, which began later
        firsts.append(first)
        inodes.extend(path.stat().st_ino for path in sorted(first.folder.iterdir()))
        return folder

    monkeypatch.setattr(prepare_module, "_build", build_slowly)
    second = prepared(corpus, tmp_path / "cache")
    [first] = firsts
    assert (second.folder, second.notes) == (first.folder, ())
    assert content(second) == content(first)
    assert [path.stat().st_ino for path in sorted(first.folder.iterdir())] == inodes
    assert list((tmp_path / "cache").iterdir()) == [first.folder]


ROUNDS, PROCESSES, REPEATS = 8, 5, 5


def prepare_repeatedly(
    corpus: Corpus, caches: Path, start: Barrier, queue: "SimpleQueue[object]", *, damages: bool
) -> None:
    """Run in each process: prepare and read the same text repeatedly, and optionally damage it in between."""
    try:
        sums = []
        for round_number in range(ROUNDS):
            start.wait(60)
            for repeat in range(REPEATS):
                pairs = prepared(corpus, caches / str(round_number))
                sums.append(checksum(pairs))
                if damages and repeat % 2:
                    flip_a_bit(pairs.folder / "prepared.json")
        queue.put(sums)
    except BaseException as error:
        start.abort()
        queue.put(repr(error))


def checksum(pairs: Prepared) -> int:
    return zlib.crc32(repr(content(pairs)).encode())


def test_processes_that_prepare_the_same_text_at_once_never_read_incomplete_files(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "pairs.tsv", 300)
    context = multiprocessing.get_context("forkserver")  # not fork: this process has threads
    context.set_forkserver_preload([__name__])
    start, queue = context.Barrier(PROCESSES), context.SimpleQueue()
    processes = [
        context.Process(
            target=prepare_repeatedly, args=(corpus, tmp_path / "caches", start, queue), kwargs={"damages": number == 0}
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    checksums = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    expected = prepared(corpus, tmp_path / "other")
    assert checksums == [[checksum(expected)] * (ROUNDS * REPEATS)] * PROCESSES
    unfinished = [path.name for path in (tmp_path / "caches").glob("*/.building-*")]
    assert unfinished == []

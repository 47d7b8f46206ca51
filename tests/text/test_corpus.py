import builtins
import gzip
import io
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.errors import DataError
from heed.text.corpus import LONGEST_LINE, Corpus, Pair, read_lines, read_pairs

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
COMPRESSED = [".gz", ".zst"]
LINES = [f"line {number} {number * 7919 % 10007}" for number in range(20_000)]


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def lines_of(tmp_path: Path, content: bytes | str) -> list[str]:
    return list(read_lines(write(tmp_path / "text", content)))


def pairs_of(path: str, **settings: Any) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(Corpus(pairs=path, **settings))]


def feed_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def refused(message: str) -> Any:
    return pytest.raises(DataError, match=f"^{re.escape(message)}")


# Valid files


@pytest.mark.parametrize("source_ending", COMPRESS)
@pytest.mark.parametrize("target_ending", COMPRESS)
def test_two_files_are_paired_line_by_line_for_any_compression(
    tmp_path: Path, source_ending: str, target_ending: str
) -> None:
    source = write(tmp_path / f"a.en{source_ending}", COMPRESS[source_ending](b"a house\n\n the end \n"))
    target = write(tmp_path / f"a.de{target_ending}", COMPRESS[target_ending]("ein Haus\nschön\n\tdas Ende".encode()))
    assert list(read_pairs(Corpus(source, target))) == [
        Pair("a house", "ein Haus", 1),
        Pair("", "schön", 2),
        Pair(" the end ", "\tdas Ende", 3),
    ]


@pytest.mark.parametrize("ending", COMPRESS)
def test_tsv_and_jsonl_are_recognised_by_the_file_name(tmp_path: Path, ending: str) -> None:
    tsv = write(tmp_path / f"a.tsv{ending}", COMPRESS[ending](b'"a\t b"\n\t\n'))
    assert pairs_of(tsv) == [('"a', ' b"'), ("", "")]
    row = json.dumps({"source": "a\tb", "id": 7, "target": "𝄞"})  # 𝄞 becomes two escapes, a proper surrogate pair
    jsonl = write(tmp_path / f"A.JSONL{ending.upper()}", COMPRESS[ending](row.encode()))
    assert pairs_of(jsonl) == [("a\tb", "𝄞")]


def test_a_given_format_and_given_keys_take_precedence_over_the_file_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", '{"en": "a", "de": "b"}\n')
    assert pairs_of(path, pairs_format="jsonl", source_key="en", target_key="de") == [("a", "b")]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("a\r\nb\r\n\r\nc\r", ["a", "b", "", "c"]),
        ("a\rb\r\r\n", ["a\rb\r"]),
        ("a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\nh", ["a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg", "h"]),
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
        ("\ufeff", []),
        ("\ufeff\n", [""]),
    ],
    ids=repr,
)
def test_only_newlines_end_lines_and_only_a_first_byte_order_mark_is_dropped(
    tmp_path: Path, content: str, lines: list[str]
) -> None:
    assert lines_of(tmp_path, content) == lines


@settings(deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"))),
    end=st.sampled_from(["\n", "\r\n"]),
    ending=st.sampled_from(list(COMPRESS)),
)
def test_any_text_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str, ending: str
) -> None:
    # The byte order mark lets a text start with one too.
    content = "\ufeff" + "".join(text + end for text in texts)
    path = write(tmp_path_factory.getbasetemp() / f"any.txt{ending}", COMPRESS[ending](content.encode()))
    assert list(read_lines(path)) == texts


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_compressed_file_may_have_several_members(tmp_path: Path, ending: str) -> None:
    members = [COMPRESS[ending](part) for part in (b"one\ntw", b"", b"o\n", b"three" * 50_000)]
    path = write(tmp_path / f"a.txt{ending}", b"".join(members))
    assert list(read_lines(path)) == ["one", "two", "three" * 50_000]


def test_standard_input_is_one_side_or_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "a.de", "eins\nzwei\n")
    feed_standard_input(monkeypatch, b"one\r\ntwo")
    assert list(read_pairs(Corpus("-", target))) == [Pair("one", "eins", 1), Pair("two", "zwei", 2)]
    feed_standard_input(monkeypatch, b"one\teins\n")
    assert pairs_of("-", pairs_format="tsv") == [("one", "eins")]
    assert not sys.stdin.closed


def test_a_pipe_is_read_as_utf_8_whatever_the_locale() -> None:
    program = "from heed.text.corpus import read_lines; print(ascii(list(read_lines('-'))))"
    command = [sys.executable, "-X", "utf8=0", "-c", program]
    process = subprocess.run(
        command, input="schön\u2028\n".encode(), capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    assert process.stdout.decode().strip() == r"['sch\xf6n\u2028']"


@pytest.mark.parametrize("ending", COMPRESS)
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, ending: str) -> None:
    rows = "".join(f"line {number}\t{number * 7919 % 200_003}\n" for number in range(60_000))
    path = write(tmp_path / f"a.tsv{ending}", COMPRESS[ending](rows.encode()))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(Corpus(pairs=path))) == 60_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_line_as_long_as_the_limit_is_read_whole(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.txt{ending}", COMPRESS[ending](b"x" * (LONGEST_LINE - 1) + b"\nshort\n"))
    assert [len(line) for line in read_lines(path)] == [LONGEST_LINE - 1, 5]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_huge_line_is_refused_by_file_and_line_before_it_fills_the_memory(tmp_path: Path, ending: str) -> None:
    """50 MB; compressed, a thousandth of that."""
    path = write(tmp_path / f"a.txt{ending}", COMPRESS[ending](b"short\n" + b"x" * 50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"^{re.escape(path)}:2: a line of more than 4,194,304 bytes"):
            list(read_lines(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000  # zstd decompresses 512 bytes to up to 16 MB


def test_a_huge_line_on_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    feed_standard_input(monkeypatch, b"one\n" + b"x" * (LONGEST_LINE + 1))
    with pytest.raises(DataError, match=r"^standard input:2: a line of more than 4,194,304 bytes"):
        list(read_lines("-"))


def test_a_huge_document_is_refused_by_file_and_first_line(tmp_path: Path) -> None:
    line = "x" * 1_000_000 + "\n"
    path = write(tmp_path / "a.txt", "short\n\n" + line * 16 + "\n" + line)
    assert [len(pair.target) for pair in read_pairs(Corpus(text=path, documents=True))] == [5, 16_000_015, 1_000_000]
    path = write(tmp_path / "b.txt", "short\n\n" + line * 17)
    pairs = read_pairs(Corpus(text=path, documents=True))
    assert next(pairs).target == "short"
    with pytest.raises(DataError, match=rf"{re.escape(path)}:3: a document of more than 16,777,216 characters begins"):
        next(pairs)


def test_an_abandoned_reader_closes_its_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", gzip.compress(b"one\ntwo\n"))
    pairs = read_pairs(Corpus(path, path))
    assert next(pairs) == Pair("one", "one", 1)
    del pairs  # an open file would now be a ResourceWarning, and warnings are errors


# Invalid corpora


@pytest.mark.parametrize(
    ("corpus_settings", "message"),
    [
        (
            {},
            "a corpus is either source and target, or pairs, or text: found source = None, target = None, pairs = None",
        ),
        ({"source": "a"}, "a corpus is either source and target, or pairs, or text: found source = 'a', target = None"),
        ({"source": "", "target": "b"}, "a corpus is either source and target, or pairs, or text: found source = ''"),
        (
            {"source": "a", "target": "b", "pairs": "c.tsv"},
            "a corpus is either source and target, or pairs, or text: found source = 'a', target = 'b', pairs ",
        ),
        (
            {"target": "b", "pairs": "c.tsv"},
            "a corpus is either source and target, or pairs, or text: found source = None",
        ),
        ({"source": "-", "target": "-"}, "source = '-' and target = '-': standard input can be read only once"),
        (
            {"source": "a.en", "target": "-", "pairs_format": "tsv"},
            "pairs_format = 'tsv' is for pairs, but a.en + standard input is source and target",
        ),
        ({"pairs": "-"}, "--pairs -: expected a name ending in .tsv, .csv or .jsonl"),
        ({"pairs": "a.txt.gz"}, "--pairs a.txt.gz: expected a name ending in .tsv"),
        ({"pairs": "a.tsv", "pairs_format": "xml"}, "--pairs-format xml: expected"),
        ({"pairs": "a.jsonl", "columns": "1,2"}, "--columns 1,2 is for .tsv and .csv files, found a.jsonl"),
        ({"source": "a", "target": "b", "columns": "1,2"}, "--columns 1,2 is for .tsv and .csv files, found a + b"),
        ({"pairs": "a.tsv", "columns": "2"}, "--columns 2: expected the columns of"),
        (
            {"pairs": "a.tsv", "columns": "0,1"},
            "--columns 0,1: expected the columns of source and target, or of a label and one or two texts, "
            "such as 1,2, or their names in the header row; the first column is 1",
        ),
        ({"pairs": "a.tsv", "weight": 0.0}, "weight = 0.0 of a.tsv: expected a finite number greater than 0"),
        ({"source": "a", "target": "b", "weight": -1.5}, "weight = -1.5 of a + b: expected a finite number"),
        ({"pairs": "a.tsv", "weight": float("nan")}, "weight = nan of a.tsv: expected"),
        ({"pairs": "a.tsv", "weight": float("inf")}, "weight = inf of a.tsv: expected"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_inconsistent_corpus_settings_are_refused_by_value(corpus_settings: dict[str, Any], message: str) -> None:
    with refused(message):
        Corpus(**corpus_settings)


# Invalid files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nsch\xc3\xb6n caf\xe9\n", "2: not valid UTF-8: byte 0xe9 at column 10: convert the file to UTF-8"),
        (b"\xed\xa0\x80", "1: not valid UTF-8: byte 0xed at column 1: convert the file to UTF-8"),
        (b"\xef\xbb\xbfab\xff", "1: not valid UTF-8: byte 0xff at column 3: convert the file to UTF-8"),
        ("\ufeffhi\n".encode("utf-16-le"), "1: not valid UTF-8: byte 0xff at column 1: looks like UTF-16; convert it"),
        ("\ufeffhi\n".encode("utf-16-be"), "1: not valid UTF-8: byte 0xfe at column 1: looks like UTF-16; convert it"),
        (
            gzip.compress(b"a", mtime=0),
            "1: not valid UTF-8: byte 0x8b at column 2: looks like gzip; decompress it, or rename it to",
        ),
        (
            COMPRESS[".zst"](b"a"),
            "1: not valid UTF-8: byte 0xb5 at column 2: looks like zstd; decompress it, or rename it to",
        ),
        (b"a\nb\n\xff\xfe", "3: not valid UTF-8: byte 0xff at column 1: convert the file to UTF-8"),
        (b"a\n\xc3\xb6\x00b\n", "2: NUL byte at column 2: expected UTF-8 text, not UTF-16 or binary data"),
    ],
)
def test_text_that_is_not_utf_8_is_refused_by_line_and_column(tmp_path: Path, content: bytes, message: str) -> None:
    with refused(f"{tmp_path / 'text'}:{message}"):
        lines_of(tmp_path, content)


def test_the_error_for_invalid_text_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = write(tmp_path / "a.en", "a\nb\n"), write(tmp_path / "a.de", b"a\n\xff\n")
    with refused(f"{bad}:2: not valid UTF-8: byte 0xff at column 1"):
        list(read_pairs(Corpus(good, bad)))
    feed_standard_input(monkeypatch, b"a\nb\0\n")
    with refused("standard input:2: NUL byte at column 2"):
        list(read_pairs(Corpus("-", good)))


@pytest.mark.parametrize("longer_is_source", [True, False])
def test_files_of_unequal_lengths_are_refused_with_both_counts(tmp_path: Path, longer_is_source: bool) -> None:
    shorter, longer = write(tmp_path / "short", "1\n2\n"), write(tmp_path / "long", b"1\n2\n3\n\xff\n5")
    pairs = read_pairs(Corpus(longer, shorter) if longer_is_source else Corpus(shorter, longer))
    assert [next(pairs).line, next(pairs).line] == [1, 2]
    with refused(
        f"{longer}:3: this line has no counterpart: {shorter} ends after line 2, {longer} after line 5; line n of"
    ):
        next(pairs)


@pytest.mark.parametrize(("row", "columns"), [("a", 1), ("a\tb\tc", 3), ("a\tb\t", 3)])
def test_a_tsv_row_must_have_two_columns(tmp_path: Path, row: str, columns: int) -> None:
    path = write(tmp_path / "a.tsv", f"a\tb\n{row}\nc\td\n")
    with refused(f"{path}:2: expected 2 columns (source and target), found {columns}"):
        pairs_of(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"source": "a", }', "not valid JSON at column 17: Expecting property name"),
        ("plain text", "not valid JSON at column 1: Expecting value"),
        ("[" * 100_000, "JSON that cannot be read: "),  # the reason differs between Pythons
        ("9" * 5_000, "JSON that cannot be read: Exceeds the limit (4300 digits)"),
        ('["a", "b"]', "expected a JSON object, found list"),
        ("null", "expected a JSON object, found NoneType"),
        ('{"source": "a", "tgt": "b"}', "no key 'target', the keys are 'source', 'tgt': choose with --source-key"),
        ("{}", "no key 'source', the keys are none: choose with --source-key and --target-key"),
        ('{"translation": {"en": "a", "de": "b"}}', "no key 'source', the keys are 'translation.en', 'translation.de'"),
        ('{"source": "a", "target": 7}', "the value of 'target' must be a string, found int"),
        ('{"source": null, "target": "b"}', "the value of 'source' must be a string, found NoneType"),
        (
            r'{"source": "ab\ud800", "target": "b"}',
            r"the value of 'source' has the unpaired surrogate '\ud800' at character 3, which is not valid text",
        ),
        (r'{"source": "a", "target": "b\u0000"}', "the value of 'target' has a NUL at character 2"),
    ],
    ids=lambda value: value[:45],
)
def test_an_invalid_jsonl_row_is_refused_by_line_and_reason(tmp_path: Path, row: str, message: str) -> None:
    good = '{"source": "a", "target": "b"}'
    path = write(tmp_path / "a.jsonl", f"{good}\n{row}\n{good}\n")
    with refused(f"{path}:2: {message}"):
        pairs_of(path)


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl"])
def test_a_blank_line_is_an_empty_pair_except_at_the_very_end(tmp_path: Path, ending: str) -> None:
    good = {".tsv": "a\tb", ".csv": "a,b", ".jsonl": '{"source": "a", "target": "b"}'}[ending]
    path = write(tmp_path / f"a{ending}", f"{good}\r\n\r\n\n{good}\n\n")
    assert pairs_of(path) == [("a", "b"), ("", ""), ("", ""), ("a", "b")]


def test_keys_may_name_an_object_inside_an_object(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"translation": {"en": "a", "de": "b"}, "id": 1}\n{"translation.en": "c", "x": "d"}\n'
    )
    rows = read_pairs(Corpus(pairs=path, source_key="translation.en", target_key="translation.de"))
    assert next(rows) == Pair("a", "b", 1)
    with refused(f"{path}:2: no key 'translation.de', the keys are 'translation.en', 'x'"):
        next(rows)


def test_labels_may_be_integers_or_truth_values_and_texts_may_not(tmp_path: Path) -> None:
    labelled = {"labelled": True, "source_key": "text", "target_key": "label"}
    rows = '{"text": "a", "label": 1}\n{"text": "b", "label": true}\n{"text": "c", "label": "x"}\n'
    assert pairs_of(write(tmp_path / "a.jsonl", rows), **labelled) == [("a", "1"), ("b", "true"), ("c", "x")]
    for row, message in (
        ('{"text": "a", "label": 0.5}', "the value of 'label' must be a string or an integer, found float"),
        ('{"text": "a", "label": null}', "the value of 'label' must be a string or an integer, found NoneType"),
        ('{"text": 1, "label": 1}', "the value of 'text' must be a string, found int"),
    ):
        with refused(f"{tmp_path}/b.jsonl:1: {message}"):
            pairs_of(write(tmp_path / "b.jsonl", row), **labelled)


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        ("1\ta\tb\n2\tc\td\n", {"columns": "2,3"}, [("a", "b"), ("c", "d")]),
        ("a\tb\n", {"columns": "2,1"}, [("b", "a")]),
        ("id\ten\tde\n1\ta\tb\n", {"columns": "de,en"}, [("b", "a")]),
        ("id\tEnglish \n1\ta\n", {"columns": "English,1"}, [("a", "1")]),
        ("a good one\t1\n", {"columns": "2,1", "labelled": True}, [("a good one", "1")]),
        ("x\ta\tb\tl\n", {"columns": "4,2,3", "labelled": True}, [("a\tb", "l")]),
    ],
)
def test_columns_are_chosen_by_number_or_by_the_name_in_the_first_row(
    tmp_path: Path, content: str, settings: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert pairs_of(write(tmp_path / "a.tsv", content), **settings) == expected
    assert pairs_of(write(tmp_path / "a.csv", content.replace("\t", ",")), **settings) == expected


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("id\ten\tde\n", {"columns": "en,fr"}, "1: --columns: no column 'fr' in the header row, which has 'id', 'en'"),
        ("a\tb\tc\nd\te\n", {"columns": "2,3"}, "2: expected at least 3 columns, found 2"),
        ("a\tb\tc\n", {}, "1: expected 2 columns (source and target), found 3: choose with --columns, such as"),
        (
            "source\ttarget\na\tb\n",
            {},
            "1: looks like a header row of column names (source, target), not like text: choose",
        ),
        ("en\tde\na\tb\n", {}, "1: looks like a header row of column names (en, de)"),
        (
            "id\ten\tde\n1\ta\tb\n",
            {"columns": "2,3"},
            "1: looks like a header row of column names (id, en, de), not like ",
        ),
        (
            "text\tlabel\n",
            {"labelled": True},
            "1: looks like a header row of column names (text, label), not like text: choose "
            "columns by these names, such as --columns label,text, or remove the line",
        ),
    ],
)
def test_missing_columns_and_header_rows_are_refused(
    tmp_path: Path, content: str, settings: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "a.tsv", content)
    with refused(f"{path}:{message}"):
        pairs_of(path, **settings)


def test_three_columns_without_labels_are_refused(tmp_path: Path) -> None:
    with refused("--columns 1,2,3: expected the columns of source and target, such as 1,2, or their names"):
        pairs_of(write(tmp_path / "a.tsv", "a\tb\tc\n"), columns="1,2,3")


def test_a_csv_cell_in_quotes_may_have_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'one,"a ""b"", c"\r\n"two\nlines",d\nthree,e\n')
    pairs = list(read_pairs(Corpus(pairs=path)))
    assert pairs == [Pair("one", 'a "b", c', 1), Pair("two\nlines", "d", 2), Pair("three", "e", 4)]
    with refused(f"{path}:2: not valid CSV: "):
        pairs_of(write(tmp_path / "a.csv", 'a,b\n"c"x,d\n'))


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", "", ".txt"])
def test_an_error_handler_receives_every_invalid_row_and_the_valid_rows_are_read(tmp_path: Path, ending: str) -> None:
    good = {".tsv": b"a\tb", ".csv": b"a,b", ".jsonl": b'{"source": "a", "target": "b"}'}.get(ending, b"a")
    bad = {".tsv": b"a", ".csv": b'"a"b', ".jsonl": b"[]"}.get(ending, b"\0")
    path = write(tmp_path / f"a{ending}", b"\n".join([bad, good, bad, good, b"\xff", good]) + b"\n")
    corpus = {"": Corpus(path, path), ".txt": Corpus(text=path)}.get(ending) or Corpus(pairs=path)
    errors: list[DataError] = []
    assert [pair.line for pair in read_pairs(corpus, errors.append)] == [2, 4, 6]
    assert [str(error).split(": ")[0] for error in errors] == [f"{path}:{line}" for line in (1, 3, 5)]
    with refused(str(errors[0])):
        list(read_pairs(corpus))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "missing.gz")
    with refused(f"{missing}: cannot be opened: No such file or directory"):
        list(read_lines(missing))
    with refused(f"{tmp_path}: cannot be opened: Is a directory"):
        list(read_lines(str(tmp_path)))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)  # chmod would not stop a test that runs as root
    with refused("secret.txt: cannot be opened: Permission denied"):
        list(read_lines("secret.txt"))


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with refused("standard input cannot be read: it is closed or has no byte stream (found None)"):
        list(read_lines("-"))


def test_the_error_for_zst_without_zstandard_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.zst", COMPRESS[".zst"](b"a"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with refused(f"{path}: reading .zst needs the package zstandard: pip install zstandard"):
        list(read_lines(path))


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_truncated_compressed_file_is_refused_at_the_line_reached(tmp_path: Path, ending: str, kind: str) -> None:
    compressed = COMPRESS[ending]("\n".join(LINES).encode())
    for size in (0, 2, len(compressed) // 2, len(compressed) - 1):
        path = write(tmp_path / f"cut{ending}", compressed[:size])
        lines_read: list[str] = []
        with pytest.raises(DataError) as error:
            lines_read.extend(read_lines(path))  # keeps what came before the error
        assert lines_read == LINES[: len(lines_read)]
        assert (
            str(error.value)
            == f"{path}:{len(lines_read) + 1}: cannot be read from here on: the {kind} data are truncated"
        )
        assert (len(lines_read) > 5_000) == (size > 2), "lines before the truncation are read"


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path: Path, ending: str, kind: str) -> None:
    for content, line in ((b"just text\n", 1), (COMPRESS[ending](b"one\ntwo\n") + b"just text\n", 3)):
        path = write(tmp_path / f"a{ending}", content)
        with refused(f"{path}:{line}: cannot be read from here on: not {kind} data, or damaged ("):
            list(read_lines(path))


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_damaged_checksum_is_refused(tmp_path: Path, ending: str, kind: str) -> None:
    compressed = bytearray(COMPRESS[ending]("\n".join(LINES).encode()))
    compressed[-8 if ending == ".gz" else -1] ^= 1
    path = write(tmp_path / f"a{ending}", bytes(compressed))
    with pytest.raises(DataError, match=rf"a{ending}:\d+: cannot be read from here on: not {kind} data, or damaged \("):
        list(read_lines(path))

import json
from pathlib import Path

import pytest

from heed.config import DataConfig
from heed.corpus_checks.checks import check_corpora
from heed.corpus_checks.text_errors import DROPPED_ERRORS, check_writable, write_clean
from heed.errors import DataError
from heed.text.corpus import Corpus, read_pairs
from tests.corpus_checks.planted_errors import PLANTED_ERRORS, clean_pairs

DATA = DataConfig(vocab_size=400)


def rows_of(path: Path) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(Corpus(pairs=str(path)))]


def test_pairs_with_errors_are_dropped_and_counted_and_all_others_are_written_in_order(tmp_path: Path) -> None:
    sentences, validation = clean_pairs(600), clean_pairs(620)[600:]
    dropped: dict[int, str] = {}
    for line, kind in zip(range(10, 600, 40), PLANTED_ERRORS, strict=False):
        sentences[line] = PLANTED_ERRORS[kind][0](sentences[line])
        if kind in DROPPED_ERRORS:
            dropped[line] = kind
    sentences[590], dropped[590] = sentences[0], "repeated"
    sentences[595], dropped[595] = validation[3], "leaked"
    lines = ["\t".join(pair) for pair in sentences]
    lines.insert(300, "one column")
    for name, file_lines in (("t", lines), ("v", ["\t".join(pair) for pair in validation])):
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"{line}\n" for line in file_lines), encoding="utf-8", newline="\n"
        )
    corpora = [Corpus(pairs=f"{tmp_path}/t.tsv")]
    report = check_corpora(corpora, [Corpus(pairs=f"{tmp_path}/v.tsv")], DATA)
    kept = [pair for number, pair in enumerate(sentences) if number not in dropped]
    for ending in ("tsv", "jsonl"):
        cleaned = write_clean(tmp_path / f"clean.{ending}", corpora, report)
        assert rows_of(tmp_path / f"clean.{ending}") == kept
        assert cleaned.kept == len(kept)
        assert cleaned.dropped == {kind: 1 for kind in DROPPED_ERRORS if kind in (*dropped.values(), "unreadable")}
    assert set(cleaned.dropped) == set(DROPPED_ERRORS)
    second_report = check_corpora([Corpus(pairs=f"{tmp_path}/clean.tsv")], [Corpus(pairs=f"{tmp_path}/v.tsv")], DATA)
    assert not {finding.kind for finding in second_report.findings} & set(DROPPED_ERRORS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.jsonl", "clean.tsv", "t.tsv", "v.tsv"]


def test_tabs_and_newlines_become_spaces_only_in_a_tsv_file_and_are_counted(tmp_path: Path) -> None:
    rows = [{"source": source, "target": target} for source, target in clean_pairs(30)]
    rows[3]["target"] = "deux\nlignes\tet plus"
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpora = [Corpus(pairs=f"{tmp_path}/a.jsonl")]
    report = check_corpora(corpora, [], DATA)
    assert write_clean(tmp_path / "b.tsv", corpora, report).respaced == 1
    assert rows_of(tmp_path / "b.tsv")[3][1] == "deux lignes et plus"
    assert write_clean(tmp_path / "b.jsonl", corpora, report).respaced == 0
    assert rows_of(tmp_path / "b.jsonl") == rows_of(tmp_path / "a.jsonl")


def test_labelled_and_monolingual_texts_keep_their_format(tmp_path: Path) -> None:
    rows = [f"{number % 2}\t{source}\t{target}" for number, (source, target) in enumerate(clean_pairs(40))]
    (tmp_path / "t.tsv").write_text("".join(f"{row}\n" for row in (*rows, rows[0], "1\t\tx")), encoding="utf-8")
    corpus = Corpus(pairs=f"{tmp_path}/t.tsv", labelled=True)
    cleaned = write_clean(tmp_path / "c.tsv", [corpus], check_corpora([corpus], [], DATA))
    assert (tmp_path / "c.tsv").read_text().splitlines() == rows
    assert cleaned.dropped == {"empty": 1, "repeated": 1}
    (tmp_path / "d.txt").write_text("one text\nof two lines\n\n\nanother\n\none text\nof two lines\n")
    documents = Corpus(text=f"{tmp_path}/d.txt", documents=True)
    write_clean(tmp_path / "e.txt", [documents], check_corpora([documents], [], DATA))
    assert (tmp_path / "e.txt").read_text() == "one text\nof two lines\n\nanother\n\n"


def test_an_output_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    corpus = Corpus(pairs=f"{tmp_path}/a.tsv")
    with pytest.raises(DataError, match=r"--write clean\.txt: expected a name ending in \.tsv or \.jsonl"):
        check_writable(Path("clean.txt"), [corpus], "pairs")
    with pytest.raises(DataError, match=r"a\.tsv: this is the input file; expected another name"):
        check_writable(tmp_path / "a.tsv", [corpus], "pairs")
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        write_clean(tmp_path / "none" / "b.tsv", [corpus], check_corpora([corpus], [], DATA))

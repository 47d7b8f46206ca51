import json
import os
import re
from pathlib import Path

import pytest

from heed.artifacts.card import Evaluation, corpus_digest, with_scores, without_scores, write_scores
from heed.artifacts.manifest import verify
from heed.artifacts.writing import write_folder
from heed.evaluation.metrics import Score

CARD = "# A model\n\n| | |\n|---|---|\n| steps | 900 |\n\nAll settings are in `config.json`.\n"
FILES = {"README.md": CARD.encode(), "model.safetensors": b"weights", "config.json": b"{}"}
EVALUATION = Evaluation("test.en + test.de", "0123456789ab", "beam=5", "2026-01-02")


def scores(value: float) -> list[Score]:
    names = ("BLEU", "TER")
    return [Score(name, value, value + 0.1, 1.25, f"nrefs:1|case:{name}", "short") for name in names]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", FILES)
    return tmp_path / "model"


def rows(card: str) -> list[list[str]]:
    """The cells of the Markdown table of scores; an escaped | does not end a cell."""
    section = card.partition("## Scores\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_write_scores_adds_a_table_to_the_card_and_the_folder_verifies(folder: Path) -> None:
    write_scores(folder, EVALUATION, scores(41.0))
    verify(folder)
    card = (folder / "README.md").read_text()
    assert card.startswith(CARD)
    test_set = ["test.en + test.de (0123456789ab)"]
    values = ["41.00", "41.10 ± 1.25", "beam=5", "2026-01-02"]
    assert rows(card) == [[*test_set, name, *values, f"`nrefs:1|case:{name}`"] for name in ("BLEU", "TER")]
    digests = json.loads((folder / "manifest.json").read_text())["sha256"]
    assert sorted(digests) == sorted(FILES)
    assert sorted(os.listdir(folder)) == sorted([*FILES, "manifest.json"])
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_scores_of_the_same_test_set_are_replaced_and_others_stay(folder: Path) -> None:
    validation = Evaluation("valid.en + valid.de", "ba9876543210", "", "2026-01-01")
    write_scores(folder, EVALUATION, scores(41.0))
    write_scores(folder, validation, scores(39.0))
    renamed = Evaluation("moved.en + moved.de", EVALUATION.digest, "", "2026-02-03")
    write_scores(folder, renamed, scores(42.0))
    verify(folder)
    written = [(row[0], row[1], row[2]) for row in rows((folder / "README.md").read_text())]
    assert written == [
        (f"{evaluation.test_set} ({evaluation.digest})", name, value)
        for evaluation, value in ((validation, "39.00"), (renamed, "42.00"))
        for name in ("BLEU", "TER")
    ]


def test_handwritten_text_around_the_scores_is_kept() -> None:
    card = f"{CARD}\n## Scores\n\nMeasured with care.\n\n## Licence\n\nFree.\n"
    once = with_scores(card, EVALUATION, scores(41.0))
    twice = with_scores(once, EVALUATION, scores(42.0))
    for updated in (once, twice):
        assert updated.startswith(f"{CARD}\n## Scores\n\nMeasured with care.\n")
        assert updated.endswith("\n## Licence\n\nFree.\n")
        assert len(rows(updated)) == 2
    assert with_scores(twice, EVALUATION, scores(41.0)) == once


def test_pipes_and_newlines_in_a_test_sets_name_do_not_break_the_table() -> None:
    evaluation = Evaluation("a|b\n# c.en + d.de", "0123456789ab", "", "2026-01-02")
    card = with_scores(CARD, evaluation, scores(41.0))
    assert [row[0] for row in rows(card)] == ["a|b # c.en + d.de (0123456789ab)"] * 2
    assert with_scores(card, evaluation, scores(41.0)) == card


def test_write_scores_creates_a_missing_card(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", {"config.json": b"{}"})
    write_scores(tmp_path / "model", EVALUATION, scores(41.0))
    verify(tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text().startswith("## Scores\n\n| test set |")


def test_without_scores_restores_the_card() -> None:
    after = "## Licence\n\nFree.\n"
    assert without_scores(with_scores(CARD, EVALUATION, scores(41.0))) == CARD
    assert without_scores(CARD) == CARD
    card = with_scores(f"{CARD}\n## Scores\n\n{after}", EVALUATION, scores(41.0))
    assert without_scores(card) == f"{CARD}\n{after}"


def test_the_digest_of_a_test_set_depends_on_its_lines() -> None:
    assert corpus_digest(["a", "b"], ["c", "d"]) == corpus_digest(["a", "b"], ["c", "d"])
    others = [
        corpus_digest(*texts) for texts in ((["a", "b"], ["c", "x"]), (["a b"], ["c", "d"]), (["a"], ["b", "c", "d"]))
    ]
    assert len({corpus_digest(["a", "b"], ["c", "d"]), *others}) == 4


class _CrashError(Exception):
    pass


@pytest.mark.parametrize("moment", range(6))
def test_a_crash_at_any_moment_leaves_a_folder_that_verifies(
    folder: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scores(folder, EVALUATION, scores(41.0))
    old = (folder / "README.md").read_text()
    moments = iter(range(6))

    def crash(_: int) -> None:
        if next(moments) == moment:
            raise _CrashError

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)  # called once per file and once per folder, three times each
        with pytest.raises(_CrashError):
            write_scores(folder, EVALUATION, scores(42.0))
    verify(folder)
    new = with_scores(old, EVALUATION, scores(42.0))
    assert (folder / "README.md").read_text() == (old if moment < 3 else new)
    write_scores(folder, EVALUATION, scores(42.0))
    verify(folder)
    assert (folder / "README.md").read_text() == new
    assert "README.md" in json.loads((folder / "manifest.json").read_text())["sha256"]
    assert sorted(os.listdir(folder)) == sorted([*FILES, "manifest.json"])


@pytest.mark.parametrize("obstacle", [".manifest.json.writing", ".README.md.writing"])
def test_a_folder_that_cannot_be_written_still_verifies(folder: Path, obstacle: str) -> None:
    (folder / obstacle).mkdir()
    with pytest.raises(OSError, match=re.escape(obstacle)):
        write_scores(folder, EVALUATION, scores(41.0))
    verify(folder)
    assert (folder / "README.md").read_text() == CARD

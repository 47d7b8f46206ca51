"""`heed doctor` on text and on the machine, through the real command."""

import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console
from typer.testing import CliRunner

from heed.backends.cpu.library import engine, missing_for_compiled_code
from heed.cli.doctor_report import _DROPPED, LengthStatistics, show_text
from heed.cli.main import app
from heed.cli.remedies import ADVICE
from heed.config import DataConfig
from heed.corpus_checks.checks import check_corpora
from heed.corpus_checks.text_errors import DROPPED_ERRORS, TextErrorType
from heed.microworld.corpus import corpus
from heed.text.corpus import Corpus
from tests.cli.command import heed

# A model that trains in an instant.
SMALL = ("d_model=16", "heads=2", "d_ff=16", "encoder_layers=1", "decoder_layers=1")
SETTINGS = [word for setting in SMALL for word in ("--set", f"model.{setting}")]
SETTINGS += ["--set", "training.tokens_per_batch=100", "--set", "data.vocab_size=300"]


@pytest.fixture(scope="module")
def clean() -> list[str]:
    return [f"{pair.source}\t{pair.target}" for pair in corpus("train", 300)]


def table(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def as_json(*arguments: str, stdin: str = "") -> dict[str, Any]:
    """Run `heed doctor --json` in this process, where torch is imported already."""
    run = CliRunner().invoke(app, ["doctor", "--json", *arguments], input=stdin, catch_exceptions=False)
    assert run.exit_code == 0
    return dict(json.loads(run.stdout))


def test_every_type_of_problem_has_advice() -> None:
    assert ADVICE.keys() == set(get_args(TextErrorType))


def test_problems_are_printed_with_location_count_and_remedy_in_80_columns(clean: list[str], tmp_path: Path) -> None:
    faulty = clean[:]
    faulty[41] = "\t".join(reversed(faulty[41].split("\t")))
    faulty[99] = faulty[99].replace(" ", "  ", 1)
    faulty[120] += " [bold]&amp;\x1b[31m"  # rich markup and terminal escapes in a text have no effect
    train, valid = table(tmp_path / "train.tsv", faulty), table(tmp_path / "valid.tsv", [*clean[:1], *faulty[7:8]])
    run = heed("doctor", "--pairs", train, "--valid-pairs", valid, *SETTINGS)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    lines = [line.rstrip() for line in run.stdout.splitlines()]
    assert max(len(line) for line in lines) <= int(os.environ.get("COLUMNS", "80"))
    for kind, count, location in (
        ("swapped", "1 pair", "train.tsv:42"),
        ("spaces", "1 text", "train.tsv:100"),
        ("markup", "1 text", "train.tsv:121"),
        ("control", "1 text", "train.tsv:121"),
        ("leaked", "2 pairs", "valid.tsv:1"),
    ):
        title, _, remedy = ADVICE[kind]
        heading = next(number for number, line in enumerate(lines) if title in line)
        assert lines[heading].endswith(count)
        assert lines[heading + 1].lstrip().startswith(location)
        assert remedy[:40] in " ".join(lines[heading:])
    assert any("also train.tsv:8" in line for line in lines)
    assert r"[bold]&amp;\x1b[31m" in run.stdout
    assert "\x1b" not in run.stdout
    assert "parameters" in run.stdout


def test_doctor_json_is_one_object_and_reads_standard_input(clean: list[str]) -> None:
    text = "\n".join([*clean, "\tVide."])
    report = as_json("--pairs", "-", "--preset", "small", *SETTINGS, stdin=text)
    assert report["training"] == [{"name": "standard-input.tsv", "pairs": 301}]
    assert [(finding["kind"], finding["count"]) for finding in report["findings"]] == [("empty", 1)]
    example = {"file": "standard-input.tsv", "line": 301, "texts": ["", "Vide."], "also": ""}
    assert report["findings"][0]["examples"] == [example]
    assert {(statistics["side"], statistics["unit"]) for statistics in report["lengths"]} >= {
        ("source", "words"),
        ("target", "tokens"),
    }
    assert report["plan"]["preset"] == "small"
    assert report["plan"]["estimate"]["tokens_per_step"] == 100
    assert report["plan"]["vocab_size"] == 300


def test_a_clean_corpus_reports_no_problems(clean: list[str], tmp_path: Path) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    show_text(console, check_corpora([Corpus(pairs=table(tmp_path / "a.tsv", clean))], [], DataConfig(vocab_size=300)))
    assert "No problems in 300 pairs." in console.export_text()


def test_doctor_without_a_corpus_describes_the_machine() -> None:
    report = as_json()
    assert report["plan"] is None
    assert report["machine"]["threads"] == 1
    assert report["machine"]["cpu_bfloat16"]
    assert report["machine"]["cpu_compiled"] == (missing_for_compiled_code() or engine().isa)
    assert report["machine"]["packages"].keys() >= {"onnx", "interop"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "missing.en", "--target", "missing.fr"], "missing.en: cannot be opened: No such file"),
        (["--valid-pairs", "a.tsv"], "there is no training text"),
    ],
)
def test_doctor_without_readable_training_text_is_one_error_line(arguments: list[str], message: str) -> None:
    run = heed("doctor", *arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_unreadable_rows_are_an_error_unless_the_others_are_written(clean: list[str], tmp_path: Path) -> None:
    train = table(tmp_path / "train.tsv", ["source\ttarget", *clean, *["one column"] * 30])
    run = heed("doctor", "--pairs", train, *SETTINGS)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (
        f"error: 31 unreadable rows; training would stop at {train}:1: correct them, or write all other rows with "
        "--write clean.tsv"
    )
    assert "train.tsv:1    looks like a header row of column names" in run.stdout
    assert "train.tsv:320  expected 2 columns" in run.stdout
    assert "… and 11 more" in run.stdout
    run = heed("doctor", "--pairs", train, *SETTINGS, "--write", f"{tmp_path}/clean.tsv")
    assert run.returncode == 0, run.stderr
    assert "300 pairs; left out: 31 unreadable." in " ".join(run.stdout.split())
    assert (tmp_path / "clean.tsv").read_text().splitlines() == clean
    report = as_json("--pairs", train, *SETTINGS, "--write", f"{tmp_path}/clean.jsonl")
    assert (report["written"]["kept"], report["written"]["dropped"]) == (300, {"unreadable": 31})


def test_every_type_of_dropped_pair_has_a_description() -> None:
    assert _DROPPED.keys() == set(DROPPED_ERRORS)


def test_lengths_are_quantiles_and_every_text_is_in_the_histogram() -> None:
    statistics = LengthStatistics.of("source", "words", Counter(range(1, 101)))
    assert (statistics.shortest, statistics.low, statistics.median, statistics.high, statistics.longest) == (
        1,
        5,
        50,
        95,
        100,
    )
    assert sum(statistics.histogram) == 100


def test_doctor_checks_monolingual_text_and_times_its_task(clean: list[str], tmp_path: Path) -> None:
    texts = [line.split("\t")[1] for line in clean]
    train, valid = table(tmp_path / "train.fr", [*texts, texts[3]]), table(tmp_path / "valid.fr", texts[:1])
    for task in ("language-model", "masked"):
        report = as_json("--task", task, "--text", train, "--valid-text", valid, *SETTINGS)
        assert {finding["kind"]: finding["count"] for finding in report["findings"]} == {"repeated": 1, "leaked": 1}
        assert report["findings"][0]["what"] == "Validation text that is also in the training set"
        assert {statistics["side"] for statistics in report["lengths"]} == {"target"}
        assert report["plan"]["vocab_size"] == 300
        assert report["plan"]["steps_per_epoch"] > 1
    run = heed("doctor", "--task", "masked", "--text", train, *SETTINGS)
    assert run.returncode == 0, run.stderr
    assert "301 texts  training:" in run.stdout
    assert "also train.fr:4" in run.stdout
    assert "pair" not in run.stdout


def test_the_plan_for_documents_counts_their_segments(clean: list[str], tmp_path: Path) -> None:
    texts = [line.split("\t")[1] for line in clean]
    options = ("--task", "language-model", *SETTINGS, "--set", "data.max_tokens=50")
    lines = as_json(*options, "--text", table(tmp_path / "lines", texts))["plan"]
    document_plan = as_json(*options, "--text", table(tmp_path / "one", texts), "--set", "data.documents=true")["plan"]
    assert document_plan["steps_per_epoch"] == pytest.approx(lines["steps_per_epoch"], rel=0.1)


def test_doctor_says_that_no_pair_can_be_trained_on(clean: list[str], tmp_path: Path) -> None:
    file = table(tmp_path / "train.tsv", clean)
    run = CliRunner().invoke(app, ["doctor", "--pairs", file, "--set", "data.max_tokens=1"])
    assert run.exit_code == 0
    assert "No pair can be trained on: all are empty or longer than data.max_tokens = 1." in " ".join(
        run.stdout.split()
    )


def test_doctor_reports_label_counts(clean: list[str], tmp_path: Path) -> None:
    rows = [f"{'long' if len(line) > 90 else 'short'}\t{line.split(chr(9))[0]}" for line in clean]
    train, valid = table(tmp_path / "train.tsv", rows), table(tmp_path / "valid.tsv", ["middle\tA new one."])
    options = ("--task", "classify", "--pairs", train, "--valid-pairs", valid, *SETTINGS)
    report = as_json(*options)
    assert report["labels"]["middle"] == {"training": 0, "validation": 1}
    assert [finding["kind"] for finding in report["findings"]] == ["unknown_label"]
    assert report["plan"]["estimate"]["tokens_per_step"] == 100
    run = heed("doctor", *options)
    assert run.returncode == 0, run.stderr
    long = report["labels"]["long"]["training"]
    assert [line.split() for line in run.stdout.splitlines() if line.split()[:1] == ["long"]] == [
        ["long", str(long), f"{long / 300:.1%}", "0"]
    ]
    assert "Validation label that is not in the training set" in run.stdout


def test_training_is_estimated_for_every_task_without_a_corpus() -> None:
    sizes = {
        task: as_json("--task", task, "--preset", "tiny", *SETTINGS)["plan"]["parameters"]
        for task in ("translate", "language-model", "classify")
    }
    assert sizes["language-model"] < sizes["classify"] < sizes["translate"]

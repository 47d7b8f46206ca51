import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heed.cli.plot import plot, read_curves
from heed.errors import HeedError
from heed.plots.curves import draw
from tests.cli.command import heed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one that has just begun, and a folder that is no run."""
    folder = tmp_path_factory.mktemp("plot")
    for name in ("first", "second", "new", "other"):
        (folder / name).mkdir()
    for name in ("first", "second"):
        lines: list[dict[str, Any]] = [
            {"step": step, "loss": 8 / step, "rate": 1e-3, "tokens": 9, "seconds": 0.5} for step in range(1, 9)
        ]
        lines += [{"step": 8, "validation_loss": 1.25, "bleu": 30.0, "sample": None}]
        (folder / name / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "new" / "journal.jsonl").write_text("")
    return folder


def test_curves_are_written_into_the_run_by_default(folder: Path) -> None:
    process = heed("plot", str(folder / "first"))
    assert (process.returncode, process.stdout) == (0, "")
    assert process.stderr == f"curves written to {folder}/first/curves.svg\n"
    content = (folder / "first" / "curves.svg").read_bytes()
    assert content.decode() == draw(read_curves([folder / "first"]), "steps")  # the same bytes in every process
    svg = ElementTree.fromstring(content)  # noqa: S314 - our own
    assert {"first", "validation 1.25", "BLEU", "step"} <= {text.text for text in svg.iter() if text.text}


def test_several_runs_are_plotted_by_minutes_and_one_without_steps_is_left_out(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    runs = [str(folder / name) for name in ("first", "new", "second")]
    process = heed("plot", *runs, "--by", "minutes", "-o", str(out))
    assert process.returncode == 0
    assert process.stderr == f"new is left out: no step with a finite loss yet\ncurves written to {out}\n"
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_an_output_ending_in_pdf_is_a_pdf(folder: Path, tmp_path: Path) -> None:
    plot([folder / "first"], tmp_path / "curves.pdf")
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF-")


def test_plotting_a_folder_that_is_no_run_names_it(folder: Path) -> None:
    process = heed("plot", str(folder / "first"), str(folder / "other"))
    assert process.returncode == 2
    assert process.stderr == f"error: {folder}/other is not the folder of a training run: it has no journal.jsonl\n"


@pytest.mark.parametrize(
    ("run", "out", "by", "message"),
    [
        ("new", None, "steps", "{folder}/new: nothing to plot, no step with a finite loss yet"),
        ("first", "curves.gif", "steps", "curves.gif ends in .gif: expected .svg, .png, .pdf"),
        ("first", "curves", "steps", "curves ends in nothing: expected .svg, .png, .pdf"),
        ("first", None, "hours", "--by hours: expected steps or minutes"),
        ("first", "missing/curves.svg", "steps", "missing/curves.svg: No such file or directory"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_plot_that_cannot_be_drawn_is_an_error(
    folder: Path, run: str, out: str | None, by: str, message: str
) -> None:
    with pytest.raises(HeedError) as caught:
        plot([folder / run], Path(out) if out else None, by)
    assert str(caught.value) == message.format(folder=folder)


def test_plotting_curves_does_not_import_torch() -> None:
    code = "import sys, heed.plots.curves; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

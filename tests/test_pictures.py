"""The pictures of the docs show the numbers that are committed beside them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from docs import make_performance

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
NUMBERS = [json.loads(line) for line in (PICTURES / "performance.jsonl").read_text(encoding="utf-8").splitlines()]


def svg_texts(picture: Path) -> list[str]:
    """All texts in an SVG file."""
    return [part.text or "" for part in ElementTree.parse(picture).iter() if part.tag.endswith("text")]  # noqa: S314 - ours


def test_the_speed_charts_are_drawn_from_the_committed_numbers(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(PICTURES / "performance.py"), str(tmp_path)], check=True)
    svgs = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert svgs == {file.name: file.read_text(encoding="utf-8") for file in PICTURES.glob("performance-*.svg")}


def test_every_chart_has_hardware_and_date_and_every_bar_its_value() -> None:
    plots = {line["plot"]: line for line in NUMBERS if "title" in line}
    for name, plot in plots.items():
        assert {"hardware", "date", "command"} <= plot.keys(), name
        numbers = [line for line in NUMBERS if line["plot"] == name and "title" not in line]
        if "x" not in plot and plot.get("chart", True):
            texts = svg_texts(PICTURES / f"performance-{name}.svg")
            for number in numbers:
                assert f"{number['value']:,}" in texts
                assert number["system"] in texts
            ours, peer, *_ = (number["value"] for number in numbers)
            assert any(f"{ours / peer:.{digits}f} ×" in texts for digits in (1, 2))
    assert {line["plot"] for line in NUMBERS} == plots.keys()


def test_the_speed_tables_are_generated_from_the_committed_numbers() -> None:
    for page in make_performance.PAGES:
        text = page.read_text(encoding="utf-8")
        assert make_performance.page_text(text, NUMBERS) == text, f"run docs/make_performance.py: {page.name}"
        assert make_performance.MARKED.search(text)


def test_measurements_of_the_performance_page_are_only_in_generated_tables() -> None:
    page, *_ = make_performance.PAGES
    prose = make_performance.MARKED.sub("", page.read_text(encoding="utf-8"))
    units = r"(?:×|%|times|ms|s|[GM]iB|[TG]FLOP/s|GB/s|BLEU|(?:target )?(?:tokens|sentences|pairs)/s)"
    assert not re.findall(rf"\b\d[\d,.]* ?{units}(?!\w)", prose)

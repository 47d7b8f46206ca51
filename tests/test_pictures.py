"""The pictures of the docs show the numbers that are committed beside them."""

import re
from pathlib import Path
from xml.etree import ElementTree

from docs import make_performance
from docs.pictures.performance import PICTURES, charts, read_plots

PLOTS = read_plots()


def svg_texts(picture: Path) -> list[str]:
    """The text elements of an SVG."""
    return [part.text or "" for part in ElementTree.parse(picture).iter() if part.tag.endswith("text")]  # noqa: S314 - ours


def test_the_speed_charts_are_drawn_from_the_committed_numbers() -> None:
    assert charts(PLOTS) == {file.name: file.read_text(encoding="utf-8") for file in PICTURES.glob("performance-*.svg")}


def test_every_chart_has_hardware_and_date_and_every_bar_its_value() -> None:
    for name, plot in PLOTS.items():
        assert {"hardware", "date", "command"} <= plot.header.keys(), name
        if "x" not in plot.header and plot.header.get("chart", True):
            texts = svg_texts(PICTURES / f"performance-{name}.svg")
            for number in plot.numbers:
                assert f"{number['value']:,}" in texts
                assert number["system"] in texts
            ours, peer, *_ = (number["value"] for number in plot.numbers)
            assert any(f"{ours / peer:.{digits}f} ×" in texts for digits in (1, 2))


def test_the_speed_tables_are_generated_from_the_committed_numbers() -> None:
    for page in make_performance.PAGES:
        text = page.read_text(encoding="utf-8")
        assert make_performance.page_text(text, PLOTS) == text, f"run python -m docs.make_performance: {page.name}"
        assert make_performance.MARKED.search(text)


def test_measurements_of_the_performance_page_are_only_in_generated_tables() -> None:
    page, *_ = make_performance.PAGES
    prose = make_performance.MARKED.sub("", page.read_text(encoding="utf-8"))
    units = r"(?:×|%|times|ms|s|[GM]iB|[TG]FLOP/s|GB/s|BLEU|(?:target )?(?:tokens|sentences|pairs)/s)"
    assert not re.findall(rf"\b\d[\d,.]* ?{units}(?!\w)", prose)

import json
import math
import re
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from heed.cli.plot import read_curves
from heed.errors import FolderError
from heed.plots.chart import log_ticks, spread_labels, thinned
from heed.plots.curves import By, Curves, draw, smoothed
from heed.plots.svg import ImageFormat, render
from heed.training.step_log import METRICS, Journal

SVG = "{http://www.w3.org/2000/svg}"


def step(number: int, loss: float) -> dict[str, Any]:
    return {"step": number, "loss": loss, "rate": 1e-3 / number, "tokens": 100, "seconds": 6.0 + number % 2}


def validation(number: int, loss: float, bleu: float | None = None, **more: object) -> dict[str, Any]:
    return {"step": number, "validation_loss": loss, "bleu": bleu, "sample": None, **more}


def journal(folder: Path, entries: list[dict[str, Any]], after_step: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    writer = Journal(folder / "journal.jsonl", after_step)
    for entry in entries:
        writer.write(entry)
    return folder


def example_run(folder: Path, steps: int = 30, shift: float = 0.0) -> Path:
    """A run with falling loss and a validation at every tenth step, the best at step 20."""
    entries: list[dict[str, Any]] = []
    for number in range(1, steps + 1):
        entries.append(step(number, shift + 2 + 6 / number + 0.3 * math.sin(number)))
        if number % 10 == 0:
            entries.append(validation(number, shift + 2 + abs(number - 20) / 10, 5.0 + number))
    return journal(folder, entries)


def picture(runs: list[Path], by: By = "steps") -> ElementTree.Element:
    return ElementTree.fromstring(draw(read_curves(runs), by))  # noqa: S314 - our own


def svg_texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def line_segments(svg: ElementTree.Element, name: str) -> list[list[tuple[float, float]]]:
    """The points of the line of this name, one list per segment between gaps."""
    (path,) = (path for path in svg.iter(f"{SVG}path") if path.get("class") == name)
    lines: list[list[tuple[float, float]]] = []
    for command, x, y in re.findall(r"([ML])(\S+) ([\d.]+)", path.attrib["d"]):
        if command == "M":
            lines.append([])
        lines[-1].append((float(x), float(y)))
    return lines


def circles(svg: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    """The centres of the circles that a path draws."""
    (path,) = (path for path in svg.iter(f"{SVG}path") if path.get("class") == name)
    arcs = re.findall(r"M(\S+) (\S+) a(\S+) ", path.attrib["d"])
    return [(float(x) + float(radius), float(y)) for x, y, radius in arcs]


def names(svg: ElementTree.Element) -> set[str]:
    return {path.get("class", "") for path in svg.iter(f"{SVG}path")}


def assert_straight(values: list[float], coordinates: list[float]) -> None:
    """Check that coordinates are a linear function of the values."""
    slope, offset = np.polyfit(values, coordinates, 1)
    # The SVG has coordinates of two decimals.
    np.testing.assert_allclose(coordinates, slope * np.array(values) + offset, atol=0.011)


def test_every_validation_is_drawn_where_the_journal_says(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run", 50)
    (curves,) = read_curves([run])
    for by in ("steps", "minutes"):
        svg = picture([run], by)
        for name, values in (("loss", np.log(curves.validation_loss)), ("bleu", curves.score)):
            (points,) = line_segments(svg, f"validation-{name}-0")
            np.testing.assert_allclose(circles(svg, f"dots validation-{name}-0"), points, atol=0.011)
            assert len(points) == 5
            minutes = [sum(6.0 + n % 2 for n in range(1, s + 1)) for s in curves.validation_steps]
            x = curves.validation_steps if by == "steps" else minutes
            assert_straight(list(x), [x_coordinate for x_coordinate, _ in points])
            assert_straight(list(values), [y_coordinate for _, y_coordinate in points])
    assert "minutes of training" in svg_texts(svg)


def test_lines_are_labelled_where_they_end_and_the_best_is_ringed(tmp_path: Path) -> None:
    run = example_run(tmp_path / "ende")
    svg = picture([run])
    (curves,) = read_curves([run])
    texts = svg_texts(svg)
    for expected in (
        "ende",
        "validation 3",
        "○ best: 2 at step 20",
        f"training {smoothed(curves.loss)[1][-1]:.4g}",
        "validation 35.0",
        "○ 25.0 at step 20",
    ):
        assert expected in texts
    for panel in ("loss", "bleu"):
        (ring,) = circles(svg, f"best validation-{panel}-0")
        assert ring == pytest.approx(line_segments(svg, f"validation-{panel}-0")[0][1], abs=0.011)
    assert len(line_segments(svg, "loss-0")[0]) == 30


def test_the_best_validation_is_the_one_of_the_journal(tmp_path: Path) -> None:
    entries = [validation(1, 3.0, 9.0, best=True), validation(2, 2.0, 8.0, best=False)]
    (curves,) = read_curves([journal(tmp_path / "run", [step(1, 4.0), step(2, 3.0), *entries])])
    assert curves.best == 0


def test_several_runs_differ_in_name_and_colour(tmp_path: Path) -> None:
    short = journal(tmp_path / "no-valid", [step(1, 5.0), step(2, 4.0)])
    svg = picture([example_run(tmp_path / "one"), example_run(tmp_path / "two", 20, shift=1.0), short])
    texts = svg_texts(svg)
    for expected in (
        "one 3",
        "two 3",
        "no-valid 4",
        "○ best: 2 at step 20",
        "○ best: 3 at step 20",
        "one 35.0",
        "two 25.0",
    ):
        assert any(shown_text == expected for shown_text in texts), (expected, texts)
    looks = [
        (path.get("stroke"), path.get("stroke-dasharray"))
        for number in range(3)
        for path in svg.iter(f"{SVG}path")
        if path.get("class") == f"smoothed-{number}"
    ]
    assert len(set(looks)) == 3
    assert "Training of 3 runs" in texts


def test_fifteen_runs_look_different(tmp_path: Path) -> None:
    svg = picture([example_run(tmp_path / str(number), 20) for number in range(15)])
    lines = [path for path in svg.iter(f"{SVG}path") if path.get("class", "").startswith("smoothed-")]
    assert len({(path.get("stroke"), path.get("stroke-dasharray")) for path in lines}) == 15


def test_runs_of_the_same_name_are_labelled_by_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    runs = [example_run(tmp_path / folder / "run") for folder in ("a", "b")]
    assert [curves.name for curves in read_curves(runs)] == [str(run) for run in runs]


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_journals_give_the_same_bytes(tmp_path: Path, kind: ImageFormat) -> None:
    runs = [example_run(tmp_path / "one"), example_run(tmp_path / "two", 20)]
    first, again = (render(draw(read_curves(runs), "steps"), kind) for _ in range(2))
    assert first == again
    assert b"date" not in first.lower()


def test_a_png_is_twice_the_size_of_the_svg(tmp_path: Path) -> None:
    with Image.open(BytesIO(render(draw(read_curves([example_run(tmp_path / "run")]), "steps"), "png"))) as png:
        assert 1200 < png.width < 2000
        assert 900 < png.height < 1600


def test_a_step_far_off_the_others_leaves_the_panel_where_it_crosses_its_edge(tmp_path: Path) -> None:
    losses = [2.0 + 0.01 * (number % 7) for number in range(400)]
    losses[200] = 90.0
    svg = picture([journal(tmp_path / "run", [step(number, loss) for number, loss in enumerate(losses, start=1)])])
    before, after = line_segments(svg, "loss-0")
    top = min(y for _, y in (*before, *after))
    assert before[-1][1] == after[0][1] == top
    assert before[-2][1] > top + 50
    assert "90" not in svg_texts(svg)


def test_run_names_are_escaped_and_shown_unchanged(tmp_path: Path) -> None:
    assert "$a_b$ <&>" in svg_texts(picture([example_run(tmp_path / "$a_b$ <&>")]))


def test_a_run_that_has_just_begun_is_a_dot(tmp_path: Path) -> None:
    svg = picture([journal(tmp_path / "run", [step(1, 7.5)])], "minutes")
    assert len(circles(svg, "dots smoothed-0")) == 1
    assert "training 7.5" in svg_texts(svg)


def test_each_task_has_its_own_score_under_its_loss(tmp_path: Path) -> None:
    runs = [
        journal(tmp_path / metric, [step(1, 3.0), step(2, 2.5), {"step": 2, "validation_loss": 2.0, metric: 0.5}])
        for metric in METRICS
    ]
    curves = read_curves(runs)
    assert [curve.metric for curve in curves] == list(METRICS)
    svg = ElementTree.fromstring(draw(curves, "steps"))  # noqa: S314 - our own
    assert names(svg) >= {f"dots validation-{metric}-{number}" for number, metric in enumerate(METRICS)}
    assert {"BLEU", "Accuracy, %", "Bits per byte", "Learning rate", "Loss, nats (log scale)"} <= set(svg_texts(svg))


def test_a_run_without_validation_has_neither_its_line_nor_bleu(tmp_path: Path) -> None:
    svg = picture([journal(tmp_path / "run", [step(1, 7.5), step(2, 7.0)])])
    assert "BLEU" not in svg_texts(svg)
    assert {"loss-0", "smoothed-0", "rate-0"} <= names(svg)
    assert not any("validation" in name or "best" in name for name in names(svg))


def test_a_loss_of_nan_is_a_gap(tmp_path: Path) -> None:
    losses = [5.0, 4.5, math.nan, 4.0, math.inf, 3.5, 3.4, 0.0, 3.3, 3.2]
    entries = [step(number, loss) for number, loss in enumerate(losses, start=1)]
    tried = [validation(7, 3.0), validation(8, math.nan), validation(9, 2.9)]
    run = journal(tmp_path / "run", entries + tried)
    svg = picture([run])
    for name in ("loss-0", "smoothed-0"):
        assert [len(stretch) for stretch in line_segments(svg, name)] == [2, 2, 2]
        assert len(circles(svg, f"dots {name}")) == 1  # the step between two gaps
    assert len(circles(svg, "dots validation-loss-0")) == 2
    assert "validation-loss-0" not in names(svg)
    assert "○ best: 2.9 at step 9" in svg_texts(svg)


def test_a_resumed_run_is_drawn_like_an_uninterrupted_one(tmp_path: Path) -> None:
    cut = example_run(tmp_path / "a", 27)
    entries = [entry for entry in read_entries(example_run(tmp_path / "b")) if entry["step"] > 12]
    journal(cut, entries, after_step=12)
    resumed, uninterrupted = read_curves([cut, tmp_path / "b"])
    for name, value in vars(uninterrupted).items():
        assert name == "name" or np.array_equal(value, vars(resumed)[name]), name


def read_entries(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def test_runs_without_steps_are_recognised_and_other_folders_are_an_error(tmp_path: Path) -> None:
    blank = [
        journal(tmp_path / "new", []),
        journal(tmp_path / "nonsense", [step(1, math.nan), validation(1, math.nan)]),
    ]
    assert [curves.is_blank() for curves in read_curves([*blank, example_run(tmp_path / "run")])] == [True, True, False]
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(
            FolderError, match=rf"^{folder} is not the folder of a training run: it has no journal.jsonl$"
        ):
            read_curves([folder])


def test_smoothing_is_a_gaussian_weighted_mean_that_skips_gaps() -> None:
    values = np.random.default_rng(0).normal(5, 1, 200)
    values[[3, 50, 51, 199]] = np.nan
    expected = np.full(200, np.nan)
    for index in range(200):
        near = [
            neighbour for neighbour in range(200) if abs(neighbour - index) <= 12 and np.isfinite(values[neighbour])
        ]
        weights = [math.exp(-(((neighbour - index) / 4) ** 2) / 2) for neighbour in near]
        if np.isfinite(values[index]):
            expected[index] = sum(w * values[neighbour] for w, neighbour in zip(weights, near, strict=True)) / sum(
                weights
            )
    points, means = smoothed(values)
    assert list(points) == list(range(200))
    np.testing.assert_allclose(means, expected)
    points, means = smoothed(np.full(12_345, 3.0))  # so many that neighbours are averaged
    assert len(points) == 1000
    np.testing.assert_allclose(means, 3.0)


def test_a_long_run_is_a_small_file_that_keeps_every_peak() -> None:
    y = np.random.default_rng(0).normal(5, 1, 100_000)
    y[77_777], y[55_555], y[20_000:21_000] = 99.0, -99.0, np.nan
    x, thin = thinned(np.arange(100_000.0), y)
    assert len(thin) <= 2000
    assert (x[thin == 99.0], x[thin == -99.0]) == (77_777, 55_555)
    assert np.isnan(thin[(x >= 20_000) & (x < 21_000)]).all()
    assert (np.diff(x) > 0).all()
    steps = np.arange(1, 100_001)
    none = np.empty(0)
    run = Curves("long", steps, steps / 60, np.abs(y), np.abs(y), np.empty(0, dtype=int), none, none, "bleu", None)
    assert len(draw([run], "steps")) < 300_000


@given(st.lists(st.tuples(st.floats(-50, 250), st.sampled_from([14.0, 26.0])), min_size=1, max_size=7))
def test_labels_never_overlap_and_stay_beside_the_panel(labels: list[tuple[float, float]]) -> None:
    requested, heights = (
        [height_of_label for height_of_label, _ in sorted(labels)],
        [height for _, height in sorted(labels)],
    )
    placed = spread_labels(requested, heights, available=200.0)
    edges = [(centre - height / 2, centre + height / 2) for centre, height in zip(placed, heights, strict=True)]
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 200 + 1e-9
    assert all(above[0] >= below[1] - 1e-9 for below, above in pairwise(edges))


def test_labels_that_do_not_overlap_are_not_moved() -> None:
    assert spread_labels([20.0, 60.0, 100.0], [14.0, 26.0, 14.0], available=200.0) == pytest.approx([20.0, 60.0, 100.0])
    assert spread_labels([50.0, 50.0], [14.0, 14.0], available=200.0) == pytest.approx([43.0, 57.0])
    assert spread_labels([], [], available=200.0) == []


@settings(max_examples=1000, deadline=None)
@given(st.floats(1e-7, 1e5), st.floats(1.0, 1e7))
def test_a_logarithmic_axis_has_two_ticks_or_more_and_not_too_many(low: float, factor: float) -> None:
    high = low * max(factor, 1.04)  # the panel's margins do not make the range smaller
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 16
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert ticks == sorted(ticks)

"""Training curves: loss, validation score and learning rate of one run, or of several on one figure.

Enters: the entries of journals. Leaves: an SVG document as a string; the same journals always give the same one. Knows
nothing of folders and checkpoints.

    training loss       every step, pale, of a single run; smoothed, a thin line
    validation          a thick line; dots of a single run; a ring at the best validation, whose model the run keeps
    names               beside the ends of the lines, with the last value; under it the best
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float, Int

from heed.plots.chart import (
    MAX_BINS,
    TEXT,
    Axis,
    EndLabel,
    Line,
    circle,
    clipped,
    end_labels,
    grid,
    label_height,
    last_point,
    line,
    log_ticks,
    stroke,
    ticks,
    x_numbers,
)
from heed.plots.svg import (
    EDGE,
    LIGHT,
    SMALL,
    Theme,
    bidi_isolate,
    content_top,
    element,
    fitted,
    format_number,
    max_width,
    small_text,
    svg_document,
    text,
    tooltip,
)

By = Literal["steps", "minutes"]

SCORES = {"bleu": "BLEU", "accuracy": "Accuracy, %", "bits_per_byte": "Bits per byte"}  # by the journal's names
_X_LABELS = {"steps": "step", "minutes": "minutes of training"}
_HEIGHTS = {"loss": 250.0, **dict.fromkeys(SCORES, 104.0), "rate": 80.0}  # of the panels, in their order
_WIDE, _BETWEEN, _LONGEST_NAME = 540.0, 46.0, 260.0


@dataclass(frozen=True)
class Curves:
    """One run's journal as arrays; NaN, a gap in the line, where there is no number."""

    name: str
    steps: Int[np.ndarray, "steps"]
    minutes: Float[np.ndarray, "steps"]  # of training up to there, validation not counted
    loss: Float[np.ndarray, "steps"]
    rate: Float[np.ndarray, "steps"]
    validation_steps: Int[np.ndarray, "validations"]
    validation_loss: Float[np.ndarray, "validations"]
    score: Float[np.ndarray, "validations"]
    metric: str  # the name of the score in the journal
    best: int | None  # the validation whose model the run keeps

    def along(self, by: By, steps: Int[np.ndarray, "points"]) -> Float[np.ndarray, "points"]:
        """The x values of steps: the steps themselves, or minutes of training."""
        if by == "steps":
            return steps.astype(float)
        return np.interp(steps, [0, *self.steps], [0.0, *self.minutes])

    def is_blank(self) -> bool:
        """Whether there is nothing to draw: no step has a finite loss."""
        return bool(np.isnan(self.loss).all())


def curves_from_journal(name: str, entries: Sequence[dict[str, Any]]) -> Curves:
    """The curves of a run, from the entries of its journal."""
    trained = [entry for entry in entries if "loss" in entry]
    validations = [entry for entry in entries if "validation_loss" in entry]
    loss, validation_loss = _numbers(trained, "loss"), _numbers(validations, "validation_loss")
    metric = next((name for name in SCORES if any(name in entry for entry in validations)), "bleu")
    return Curves(
        name,
        np.array([entry["step"] for entry in trained], dtype=int),
        np.cumsum(np.nan_to_num(_numbers(trained, "seconds"))) / 60,
        np.where(loss > 0, loss, np.nan),  # a log scale has no zero
        _numbers(trained, "rate"),
        np.array([entry["step"] for entry in validations], dtype=int),
        np.where(validation_loss > 0, validation_loss, np.nan),
        _numbers(validations, metric),
        metric,
        _best(validations, validation_loss),
    )


def _numbers(entries: list[dict[str, Any]], key: str) -> Float[np.ndarray, "points"]:
    return np.array([entry.get(key) for entry in entries], dtype=float)  # None becomes NaN


def _best(validations: list[dict[str, Any]], losses: Float[np.ndarray, "validations"]) -> int | None:
    """The last validation marked best in the journal; if none is, the first with the lowest loss."""
    marked = [number for number, entry in enumerate(validations) if entry.get("best")]
    lowest = None if np.isnan(losses).all() else int(np.nanargmin(losses))
    return marked[-1] if marked else lowest


def smoothed(y: Float[np.ndarray, "steps"]) -> tuple[Int[np.ndarray, "points"], Float[np.ndarray, "points"]]:
    """The indices of some points, and a Gaussian-weighted mean around each, as wide as a fiftieth of the run.

    It is centred, so it does not lag behind as a running mean does. Gaps stay gaps, and count for nothing.
    """
    bins = np.array_split(np.arange(len(y)), min(len(y), MAX_BINS))
    width = len(bins) / 50
    reach = int(3 * width)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    total = np.array([np.nansum(y[bin_]) for bin_ in bins])
    count = np.array([np.isfinite(y[bin_]).sum() for bin_ in bins])
    near, weight = (np.convolve(part, bell, mode="same") for part in (total, count))
    middles = np.array([bin_[len(bin_) // 2] for bin_ in bins])
    return middles, np.where(count > 0, near / np.where(count > 0, weight, 1.0), np.nan)


@dataclass(frozen=True)
class _Series:
    """One line of a panel."""

    name: str  # its class in the SVG
    points: Line  # NaN where there is a gap
    look: dict[str, Any]  # SVG attributes
    hint: str  # the tooltip
    label: str = ""  # beside its end
    under: str = ""
    best: int | None = None  # the point with a ring
    dots: bool = False
    clip_outliers: bool = False  # at the edges of the panel


def draw(runs: Sequence[Curves], by: By, theme: Theme = LIGHT) -> str:
    """The figure: panels for the loss, for each score there is, and for the learning rate. No run may be blank."""
    panels: dict[str, list[_Series]] = {name: [] for name in _HEIGHTS}
    for number, run in enumerate(runs):
        for name, curve in _series(run, number, by, theme, single_run=len(runs) == 1):
            panels[name].append(curve)
    panels = {name: series for name, series in panels.items() if series}
    scales = {name: _scale(name, series) for name, series in panels.items()}
    left = EDGE + 8 + max(max_width(map(format_number, numbers), SMALL) for *_, numbers in scales.values())
    end = max(float(run.along(by, run.steps)[-1]) for run in runs)
    x = Axis(0.0, end or 1.0, left, left + _WIDE)
    x_ticks = ticks(0.0, x.high, 8, whole=by == "steps")
    parts: list[Element] = []
    furthest, bottom = x.end + max_width(map(format_number, x_ticks), SMALL) / 2, content_top("any") - 16
    for name, series in panels.items():
        top = bottom + _BETWEEN
        bottom = top + max(_HEIGHTS[name], sum(label_height(curve.under) for curve in series if curve.label))
        low, high, numbers = scales[name]
        y = Axis(low, high, bottom, top, log=name == "loss")
        drawn, reached = _panel(series, x, y)
        parts += [text(left, top - 18, _title(name, runs), TEXT), *grid(x, y, x_ticks, numbers, theme), *drawn]
        furthest = max(furthest, reached)
    parts += [*x_numbers(x, x_ticks, bottom), small_text(x.end, bottom + 30, _X_LABELS[by], "end")]
    if len(runs) > 1:
        parts.append(
            small_text(x.end, content_top("any") + 12, "thin: training · thick: validation · ring: best", "end")
        )
    title = runs[0].name if len(runs) == 1 else f"Training of {len(runs)} runs"
    return svg_document((furthest, bottom + 36), title, theme, parts)


def _series(run: Curves, number: int, by: By, theme: Theme, *, single_run: bool) -> Iterator[tuple[str, _Series]]:
    """The lines of a run and the panels they belong to. A single run has a colour per kind of line; each of several has
    its own colour, and no pale line of every step.
    """
    thin, thick = (
        {**stroke(colour, theme), "stroke-width": stroke_width}
        for colour, stroke_width in _pens(number, single_run=single_run)
    )
    x, validation_x = run.along(by, run.steps), run.along(by, run.validation_steps)
    points, means = smoothed(run.loss)
    validated = run.best is not None and bool(np.isfinite(run.validation_loss).any())
    if single_run:
        pale = {**thin, "stroke-width": 0.7, "stroke-opacity": 0.25}
        yield "loss", _Series(f"loss-{number}", (x, run.loss), pale, "training, every step", clip_outliers=True)
    label = (
        "" if validated and not single_run else _label(run, "training", f"{_last(means):.4g}", single_run=single_run)
    )
    yield "loss", _Series(f"smoothed-{number}", (x[points], means), thin, f"{run.name}: training, smoothed", label)
    dots = single_run and len(validation_x) <= 50
    for panel, values, digits in (("loss", run.validation_loss, ".4g"), (run.metric, run.score, _digits(run.metric))):
        if run.best is not None and np.isfinite(values).any():
            label = _label(run, "validation", f"{_last(values):{digits}}", single_run=single_run)
            step = run.validation_steps[run.best]
            best = f"○ {'best: ' * (panel == 'loss')}{values[run.best]:{digits}} at step {step:,}"
            under = best if np.isfinite(values[run.best]) else ""
            name, hint = f"validation-{panel}-{number}", f"{run.name}: validation"
            yield panel, _Series(name, (validation_x, values), thick, hint, label, under, run.best, dots)
    if np.isfinite(run.rate).any():
        yield "rate", _Series(f"rate-{number}", (x, run.rate), thin, f"{run.name}: learning rate")


def _pens(number: int, *, single_run: bool) -> tuple[tuple[int, float], tuple[int, float]]:
    """Colour and width of training and of validation."""
    return ((0, 1.2), (1, 2.2)) if single_run else ((number, 1.0), (number, 2.2))


def _label(run: Curves, kind: str, value: str, *, single_run: bool) -> str:
    return f"{kind if single_run else bidi_isolate(fitted(run.name, _LONGEST_NAME, TEXT))} {value}"


def _last(values: Float[np.ndarray, "points"]) -> float:
    return float(values[np.isfinite(values)][-1])


def _digits(metric: str) -> str:
    return ".3f" if metric == "bits_per_byte" else ".1f"


def _title(name: str, runs: Sequence[Curves]) -> str:
    if name == "loss":
        per_token = "" if any(run.metric == "accuracy" for run in runs) else " per target token"
        return f"Loss, nats{per_token} (log scale)"
    return SCORES.get(name, "Learning rate")


def _scale(name: str, series: Sequence[_Series]) -> tuple[float, float, list[float]]:
    """What a y axis spans, and its ticks."""
    usual = [
        np.nanpercentile(curve.points[1], (0.2, 99)) if curve.clip_outliers else curve.points[1] for curve in series
    ]
    values = np.concatenate(usual)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if name == "loss":
        margin = max((high / low) ** 0.05, 1.02)
        return low / margin, high * margin, log_ticks(low / margin, high * margin)
    numbers = ticks(min(low, 0.0), high, 4, beyond=True) if high > min(low, 0.0) else [0.0, 1.0]
    return numbers[0], numbers[-1], numbers


def _panel(series: Sequence[_Series], x: Axis, y: Axis) -> tuple[list[Element], float]:
    """The lines of a panel and their labels, and where the labels end."""
    parts: list[Element] = []
    labels = []
    for curve in series:
        drawn = x(curve.points[0]), y(curve.points[1])
        if curve.clip_outliers:
            drawn = clipped(*drawn, y.end, y.start)
        parts += line(drawn, curve.look, curve.name, curve.hint, curve.dots)
        if curve.best is not None and np.isfinite(drawn[1][curve.best]):
            ring = {"d": circle(float(drawn[0][curve.best]), float(drawn[1][curve.best]), 5.0), "fill": "none"}
            look = {"class": f"best {curve.name}", "stroke": curve.look["stroke"], "stroke-width": 1.4}
            parts.append(element("path", {**ring, **look}, tooltip(curve.under)))
        if curve.label:
            end = last_point(drawn) or (x.end, y.start)
            labels.append(EndLabel(end, curve.look["stroke"], curve.label, curve.under, curve.hint))
    named, reached = end_labels(labels, x.end, (y.end, y.start))
    return [*parts, *named], reached

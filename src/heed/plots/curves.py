"""Journals to a picture of how training went: loss, score and learning rate, of one run or of several on one figure.

Enters: run folders. Leaves: the bytes of an SVG or PNG; the same journals always give the same bytes. Needs matplotlib
only to draw, and never a display. Knows nothing of checkpoints: it shows what the journals say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from heed.plots.chart import STRETCHES, apart, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


By = Literal["steps", "minutes"]

# Okabe and Ito's colours, which readers with any kind of colour vision tell apart; without the two too pale for white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_INK, _GREY, _HAIR = "#333333", "#767676", "#E6E6E6"
_STYLE: dict[str, Any] = {
    "axes.edgecolor": "#BBBBBB",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: to be searched, read aloud and tested
    "svg.hashsalt": "heed",  # else the ids in the file are random
    "text.color": _INK,
    "text.parse_math": False,  # a folder may be called $x$
}
_SCORES = {"bleu": "BLEU", "accuracy": "Accuracy, %", "bits_per_byte": "Bits a byte"}  # one for each of task.METRICS
_TITLES = {"loss": "Loss per target token, log scale", **_SCORES, "rate": "Learning rate"}
_HEIGHTS, _BETWEEN, _WIDTH = {"loss": 230.0, **dict.fromkeys(_SCORES, 95.0), "rate": 72.0}, 36.0, 490.0  # points
_RING: dict[str, Any] = {"markersize": 9, "fillstyle": "none", "markeredgewidth": 1.2}


@dataclass(frozen=True)
class Curves:
    """One run's journal as numbers; NaN, a gap in the line, where there is none."""

    name: str
    steps: Int[np.ndarray, "steps"]
    minutes: Float[np.ndarray, "steps"]  # of training up to there, validation not counted
    loss: Float[np.ndarray, "steps"]
    rate: Float[np.ndarray, "steps"]
    tried: Int[np.ndarray, "validations"]  # the steps after which the model was validated
    validation_loss: Float[np.ndarray, "validations"]
    score: Float[np.ndarray, "validations"]
    metric: str  # what the score is
    best: int | None  # which of the validations gave the model that the run is known by

    def along(self, by: By, steps: Int[np.ndarray, "points"]) -> Float[np.ndarray, "points"]:
        """Where steps lie on the x axis."""
        if by == "steps":
            return steps.astype(float)
        return np.interp(steps, [0, *self.steps], [0.0, *self.minutes])

    def is_blank(self) -> bool:
        """There is nothing to draw: no step was taken, or none with a loss that is a number."""
        return bool(np.isnan(self.loss).all())


def curves_of(name: str, entries: Sequence[dict[str, Any]]) -> Curves:
    """The curves of a run, from the entries of its journal."""
    learnt = [entry for entry in entries if "loss" in entry]
    tried = [entry for entry in entries if "validation_loss" in entry]
    loss, validation_loss = _numbers(learnt, "loss"), _numbers(tried, "validation_loss")
    metric = next((name for name in _SCORES if any(name in entry for entry in tried)), "bleu")
    return Curves(
        name,
        np.array([entry["step"] for entry in learnt], dtype=int),
        np.cumsum(np.nan_to_num(_numbers(learnt, "seconds"))) / 60,
        np.where(loss > 0, loss, np.nan),  # a log scale has no zero
        _numbers(learnt, "rate"),
        np.array([entry["step"] for entry in tried], dtype=int),
        np.where(validation_loss > 0, validation_loss, np.nan),
        _numbers(tried, metric),
        metric,
        _best(tried, validation_loss),
    )


def _numbers(entries: list[dict[str, Any]], key: str) -> Float[np.ndarray, "points"]:
    return np.array([entry.get(key) for entry in entries], dtype=float)  # None becomes NaN


def _best(tried: list[dict[str, Any]], losses: Float[np.ndarray, "validations"]) -> int | None:
    """The last that the journal calls best; where it calls none so, the first of the lowest loss."""
    called = [number for number, entry in enumerate(tried) if entry.get("best")]
    lowest = None if np.isnan(losses).all() else int(np.nanargmin(losses))
    return called[-1] if called else lowest


def smoothed(y: Float[np.ndarray, "steps"]) -> tuple[Int[np.ndarray, "points"], Float[np.ndarray, "points"]]:
    """Some of the points' numbers, and the mean around each, near ones more: a bell as wide as a fiftieth of the run.

    It looks both ways, so it does not lag behind as a running mean does. Gaps stay gaps, and count for nothing.
    """
    stretches = np.array_split(np.arange(len(y)), min(len(y), STRETCHES))
    width = len(stretches) / 50
    reach = int(3 * width)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    total = np.array([np.nansum(y[stretch]) for stretch in stretches])
    count = np.array([np.isfinite(y[stretch]).sum() for stretch in stretches])
    near, weight = (np.convolve(part, bell, mode="same") for part in (total, count))
    middles = np.array([stretch[len(stretch) // 2] for stretch in stretches])
    return middles, np.where(count > 0, near / np.where(count > 0, weight, 1.0), np.nan)


def draw(runs: Sequence[Curves], by: By, kind: Literal["svg", "png"]) -> bytes:
    """The figure, as the bytes of a file. No run may be blank."""
    from matplotlib import style  # noqa: PLC0415 - takes its time to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    made = {"Creator": "heed", "Date": None} if kind == "svg" else {"Software": "heed"}
    metadata = {"Title": "Training of " + ", ".join(run.name for run in runs), **made}
    file = BytesIO()
    with style.context(["default", _STYLE]):  # the reader's own settings of matplotlib have no say
        figure = Figure()
        _fill(figure, runs, by)
        figure.savefig(file, format=kind, dpi=160, bbox_inches="tight", pad_inches=0.25, metadata=metadata)
    return file.getvalue()


def _fill(figure: "Figure", runs: Sequence[Curves], by: By) -> None:
    alone = len(runs) == 1
    # Of one run, each kind of line has a colour; of several, each run.
    hues = [_COLOURS[:2]] if alone else [(_COLOURS[number % len(_COLOURS)],) * 2 for number in range(len(runs))]
    labels: dict[str, list[_Label]] = {name: [] for name in _TITLES}
    for run, pair in zip(runs, hues, strict=True):
        for name, label in _labels(run, by, pair, alone):
            labels[name].append(label)
    room = {name: max(_HEIGHTS[name], sum(label.height for label in some)) for name, some in labels.items()}
    panels = _panels(figure, {name: height for name, height in room.items() if labels[name] or name not in _SCORES})
    for number, (run, pair) in enumerate(zip(runs, hues, strict=True)):
        _draw_run(panels, number, run, by, pair, alone)
    _scale(panels, runs, by)
    for name, axes in panels.items():
        _put_labels(axes, labels[name], room[name])
    if alone:
        figure.suptitle(runs[0].name, x=0, y=1, ha="left", va="center", size=12, weight="bold")
    else:
        panels["loss"].set_title("thin: training   thick: validation   ring: best", loc="right", size=9, color=_GREY)


def _panels(figure: "Figure", room: dict[str, float]) -> "dict[str, Axes]":
    """One under the other, all as wide."""
    bottom = total = sum(room.values()) + _BETWEEN * len(room)
    figure.set_size_inches(_WIDTH / 72, total / 72)
    panels = {}
    for name, height in room.items():
        bottom -= _BETWEEN + height
        panels[name] = axes = figure.add_axes((0, bottom / total, 1, height / total))
        axes.set_title(_TITLES[name], loc="left")
        axes.set_yscale("log" if name == "loss" else "linear")
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.tick_params(length=0, colors=_GREY, labelbottom=name == "rate")
        axes.grid(axis="y", color=_HAIR)
    return panels


def _draw_run(panels: "dict[str, Axes]", number: int, run: Curves, by: By, hues: tuple[str, str], alone: bool) -> None:
    """Its lines, each with a name in the SVG. One of several runs is drawn without the restless parts."""
    x, tried = run.along(by, run.steps), run.along(by, run.tried)
    if alone:
        _line(panels["loss"], f"loss-{number}", x, run.loss, color=hues[0], linewidth=0.7, alpha=0.22, clip_on=True)
    points, means = smoothed(run.loss)
    _line(panels["loss"], f"smoothed-{number}", x[points], means, color=hues[0], linewidth=1.2)
    _line(panels["rate"], f"rate-{number}", x, run.rate, color=hues[0], linewidth=1.2)
    for name, values in (("loss", run.validation_loss), (run.metric, run.score)):
        if run.best is not None and not np.isnan(values).all():
            dots = alone and len(tried) <= 50
            _line(panels[name], f"validation-{name}-{number}", tried, values, dots, color=hues[1], linewidth=2)
            at = [run.best]
            _line(panels[name], f"best-{name}-{number}", tried[at], values[at], color=hues[1], **_RING)


def _line(axes: "Axes", name: str, x: np.ndarray, y: np.ndarray, dots: bool = False, **look: Any) -> None:
    """A line, with a gap where there is no number; a point without neighbours is a dot, or nobody would see it."""
    x, y = thinned(x, y)
    there = np.pad(np.isfinite(y), 1)
    dotted = np.flatnonzero(there[1:-1] & (dots | ~(there[:-2] | there[2:])))
    look = {"clip_on": False, "markersize": 4, "zorder": 3, **look}  # below 3 the axis would cover it
    axes.plot(x, y, gid=name, marker="o", markevery=dotted, **look)


@dataclass(frozen=True)
class _Label:
    """Words beside the end of a line, and smaller ones under them."""

    end: tuple[float, float]
    colour: str
    text: str
    under: str = ""

    @property
    def height(self) -> float:
        """In points."""
        return 26.0 if self.under else 14.0


def _labels(run: Curves, by: By, hues: tuple[str, str], alone: bool) -> Iterator[tuple[str, _Label]]:
    """The labels of a run and the panels they belong to. Alone, lines are named by their kind; else by the run."""
    points, means = smoothed(run.loss)
    training = _end(run.along(by, run.steps[points]), means)
    validation, score = (_end(run.along(by, run.tried), values) for values in (run.validation_loss, run.score))
    if training and (alone or not validation):
        yield "loss", _Label(training, hues[0], f"{'training' if alone else run.name} {training[1]:.4g}")
    if validation and run.best is not None:
        best = f"○ {'best: ' * alone}{run.validation_loss[run.best]:.4g} at step {run.tried[run.best]:,}"
        yield "loss", _Label(validation, hues[1], f"{'validation' if alone else run.name} {validation[1]:.4g}", best)
    if score:
        shown = f"{score[1]:.3f}" if run.metric == "bits_per_byte" else f"{score[1]:.1f}"
        yield run.metric, _Label(score, hues[1], shown if alone else f"{run.name} {shown}")


def _end(x: np.ndarray, y: np.ndarray) -> tuple[float, float] | None:
    there = np.flatnonzero(np.isfinite(y))
    return (float(x[there[-1]]), float(y[there[-1]])) if len(there) else None


def _scale(panels: "dict[str, Axes]", runs: Sequence[Curves], by: By) -> None:
    """What each axis spans, and how its numbers are written. A step far off the others leaves the picture."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: PLC0415 - an extra

    usual = [np.nanpercentile(run.loss, (0.2, 99)) for run in runs]
    losses = np.concatenate([*usual, *(line for run in runs for line in (smoothed(run.loss)[1], run.validation_loss))])
    low, high = np.nanmin(losses), np.nanmax(losses)
    margin = max((high / low) ** 0.05, 1.02)
    end = max(float(run.along(by, run.steps)[-1]) for run in runs)
    for name, axes in panels.items():
        axes.set_xlim(0, end or 1)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=by == "steps"))
        axes.xaxis.set_major_formatter("{x:,.7g}")
        axes.set_ylim(*((low / margin, high * margin) if name == "loss" else (0, None)))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: np.format_float_positional(y, 9, trim="-")))
    panels["loss"].yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6, 8) if high < 20 * low else (1, 2, 5)))
    panels["loss"].yaxis.set_minor_locator(NullLocator())
    panels["loss"].spines["bottom"].set_visible(False)  # it would look like zero
    panels["rate"].set_xlabel("step" if by == "steps" else "minutes of training", loc="right", color=_GREY)


def _put_labels(axes: "Axes", labels: "list[_Label]", room: float) -> None:
    """Beside the panel, each as near to the height of its line's end as the others let it be."""
    labels = sorted(labels, key=lambda label: label.end[1])
    to_panel = axes.transData - axes.transAxes
    wanted = [to_panel.transform(label.end)[1] * room - (label.height - 14) / 2 for label in labels]
    _, right = axes.get_xlim()
    for label, middle in zip(labels, apart(wanted, [label.height for label in labels], room), strict=True):
        (x, y), first = label.end, middle + (label.height - 14) / 2
        thread: dict[str, Any] = {"color": label.colour, "linewidth": 0.7, "alpha": 0.5}
        axes.plot([x, right], [y, y], linestyle=":", **thread)
        arrow = {"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 7, **thread}
        place: dict[str, Any] = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(label.text, (right, y), (1.03, first / room), color=label.colour, arrowprops=arrow, **place)
        axes.annotate(label.under, (right, y), (1.03, (first - 12) / room), color=_GREY, size=8, **place)

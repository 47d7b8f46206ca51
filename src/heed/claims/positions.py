"""Positional encodings: whether they are needed, whether the bare index would do, and how they generalise to length.

Transformers that differ in `model.positions` only learn to copy strings of up to ten letters; the test has longer ones.
"""

from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict
from heed.claims.strings import copying, exact_outputs, string_tests, train_on_strings

_LONGEST: dict[Scale, int] = {"smallest": 2, "small": 10, "full": 20}  # in training
_FACTORS = (0.5, 1.0, 1.5, 2.0, 4.0)  # lengths in the test, as multiples of it
KINDS = ("sinusoidal", "learned", "rotary", "index", "none")
MODELS: dict[str, dict[str, Any]] = {kind: {"positions": kind} for kind in KINDS}


def measure(context: Context) -> list[Panel]:
    """The share of exact copies by length, for each positional encoding and seed."""
    longest = _LONGEST[context.scale]
    lengths = [round(factor * longest) for factor in _FACTORS]
    models = train_on_strings(context, copying, MODELS, range(1, longest + 1))
    exact = exact_outputs(string_tests(context, copying, models, lengths))
    return [Panel("letters in the string", "share of exact copies", exact)]


def judge_need(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether neither no encoding nor the bare index is enough at the lengths of training."""
    (panel,) = panels
    longest = panel.series[0].x[1]
    shares = {series.name: series.at(longest) for series in panel.series}
    described = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    finding = f"Exact copies of {longest:.0f} letters, the longest in training: {described}."
    encoded, crude = (shares["sinusoidal"], shares["learned"], shares["rotary"]), (shares["index"], shares["none"])
    if min(encoded) < 0.9:
        return "does not hold here", finding
    if max(crude) < 0.5:
        return "holds", finding
    return ("holds in part" if min(crude) < 0.5 else "does not hold here"), finding


def judge_length(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether sinusoidal encodings still copy strings of one and a half times and twice the length of training."""
    (panel,) = panels
    _, longest, more, double, _ = panel.series[0].x
    described = ", ".join(
        f"{series.name} {series.at(more):.0%} and {series.at(double):.0%}"
        for series in panel.series
        if series.name in ("sinusoidal", "learned", "rotary")
    )
    finding = f"Trained on up to {longest:.0f} letters, exact copies of {more:.0f} and {double:.0f}: {described}."
    sinusoidal = panel.named("sinusoidal")
    if sinusoidal.at(double) > 0.5:
        return "holds", finding
    return ("holds in part" if sinusoidal.at(more) > 0.5 else "does not hold here"), finding

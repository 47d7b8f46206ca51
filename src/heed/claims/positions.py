"""Positional encodings: whether they are needed, whether the bare index would do, and how they generalise to length.

Transformers that differ in `model.positions` only learn to copy strings of up to ten letters; the test has longer ones.
They are pre-norm, where each layer norm removes the bare index; a second experiment has it with post-norm.
"""

from collections.abc import Mapping
from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict, is_less
from heed.claims.strings import StringTaskSize, copying, exact_outputs, string_tests, train_on_strings

_LONGEST: dict[Scale, int] = {"smallest": 2, "small": 10, "full": 20}  # in training
_FACTORS = (0.5, 1.0, 1.5, 2.0, 4.0)  # lengths in the test, as multiples of it
KINDS = ("sinusoidal", "learned", "rotary", "index", "none")
MODELS: dict[str, dict[str, Any]] = {kind: {"positions": kind} for kind in KINDS}
# Post-norm needs a lower learning rate (claim warm-up).
POST_NORM: dict[Scale, StringTaskSize] = {
    "smallest": StringTaskSize(pairs=30, tests=2, steps=2, width=8, tokens=1024, rate=1e-3, norm="post"),
    "small": StringTaskSize(pairs=20_000, tests=50, steps=1000, width=64, tokens=1024, rate=1e-3, norm="post"),
    "full": StringTaskSize(pairs=100_000, tests=200, steps=1500, width=128, tokens=4096, rate=5e-4, norm="post"),
}


def measure(context: Context) -> list[Panel]:
    """The share of exact copies by length, for each positional encoding and seed."""
    return [_exact_copies(context, MODELS)]


def measure_post_norm(context: Context) -> list[Panel]:
    """The share of exact copies by length of models with post-norm, with sinusoids, the bare index, and neither."""
    kinds = ("sinusoidal", "index", "none")
    return [_exact_copies(context, {kind: MODELS[kind] for kind in kinds}, POST_NORM[context.scale])]


def _exact_copies(
    context: Context, kinds: Mapping[str, Mapping[str, Any]], size: StringTaskSize | None = None
) -> Panel:
    longest = _LONGEST[context.scale]
    lengths = [round(factor * longest) for factor in _FACTORS]
    models = train_on_strings(context, copying, kinds, range(1, longest + 1), size)
    exact = exact_outputs(string_tests(context, copying, models, lengths, size))
    return Panel("letters in the string", "share of exact copies", exact)


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


def judge_index(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the bare index fails at the lengths of training, where sinusoids do not."""
    (panel,) = panels
    short, longest = panel.series[0].x[:2]
    described = ", ".join(
        f"{series.name} {series.at(short):.0%} and {series.at(longest):.0%}" for series in panel.series
    )
    finding = f"Exact copies of {short:.0f} and of {longest:.0f} letters, the longest in training: {described}."
    sinusoidal, index = (panel.named(kind).values_at(longest) for kind in ("sinusoidal", "index"))
    if not is_less(index, sinusoidal):
        return "does not hold here", finding
    return ("holds" if panel.named("index").at(longest) < 0.5 else "holds in part"), finding


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

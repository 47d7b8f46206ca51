"""The bottleneck of a fixed vector: a sentence of any length must fit into it (Bahdanau et al. 2015).

Recurrent models with a fixed vector and with attention, a convolutional one with attention, and a Transformer learn to
copy strings.
"""

from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict
from heed.claims.strings import copying, exact_outputs, right_letters, string_tests, train_on_strings

_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (1, 2),
    "small": (2, 4, 6, 8, 12, 16, 20),
    "full": (2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
}
VECTOR = "LSTM, fixed vector"
MODELS: dict[str, dict[str, Any]] = {
    VECTOR: {"mixer": "lstm", "source_context": "vector", "heads": 1},
    "LSTM, attention": {"mixer": "lstm", "heads": 1},
    "convolution, attention": {"mixer": "convolution", "heads": 1},
    "Transformer": {},
}


def measure(context: Context) -> list[Panel]:
    """The share of exact copies by length, and of right letters by position in the longest strings."""
    lengths = _LENGTHS[context.scale]
    models = train_on_strings(context, copying, MODELS, range(1, lengths[-1] + 1))
    tested = string_tests(context, copying, models, lengths)
    exact, right = exact_outputs(tested), right_letters(tested, lengths[-1])
    return [
        Panel("letters in the string", "share of exact copies", exact),
        Panel(f"position in strings of {lengths[-1]} letters", "share of right letters", right),
    ]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether long strings are lost by the fixed vector alone."""
    panel, letters = panels
    short, long = panel.series[0].x[0], panel.series[0].x[-1]
    described = ", ".join(f"{series.name} {series.at(short):.0%} and {series.at(long):.0%}" for series in panel.series)
    positions = letters.named(VECTOR)
    finding = (
        f"Exact copies of {short:.0f} and of {long:.0f} letters: {described}. Of the longest strings the fixed vector "
        f"still has {positions.at(1.0):.0%} of the first letters and {positions.means()[-1]:.0%} of the last."
    )
    vector, *others = (series.at(long) for series in panel.series)
    if vector < 0.5 and min(others) > 0.9:
        return "holds", finding
    return ("holds in part" if vector < min(others) else "does not hold here"), finding

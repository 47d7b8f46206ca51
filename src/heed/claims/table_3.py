"""Table 3 of the paper: the base model, and what changes with each of its parts, in rows (A) to (E).

A row is named by its letter and by what differs from the base model. At full scale the base model has the paper's
number of layers and heads, and the rows the paper's values, or the same multiples of the base model's.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.translation import EXACT, LOSS, SIZES, Variant, train_variants

HEADS, KEYS, LAYERS, WIDTH, INNER = "h", "d_k", "N", "d_model", "d_ff"
DROPOUT, SMOOTHING, LEARNED = "P_drop", "ε_ls", "learned positions"
_SETTINGS: dict[str, tuple[str, ...]] = {
    HEADS: ("model.heads",),
    KEYS: ("model.d_k",),
    LAYERS: ("model.encoder_layers", "model.decoder_layers"),
    WIDTH: ("model.d_model",),
    INNER: ("model.d_ff",),
    DROPOUT: ("model.dropout",),
    SMOOTHING: ("training.label_smoothing",),
}
_BASE: dict[Scale, tuple[int, int]] = {"smallest": (2, 4), "small": (2, 4), "full": (6, 8)}  # N and h
_LAYERS: dict[Scale, tuple[int, ...]] = {"smallest": (1,), "small": (1, 4), "full": (2, 4, 8)}
_HEADS: dict[Scale, tuple[int, ...]] = {"smallest": (1, 2), "small": (1, 2, 8, 16), "full": (1, 4, 16, 32)}
_RATES: dict[Scale, tuple[float, ...]] = {"smallest": (0.0,), "small": (0.0,), "full": (0.0, 0.2)}
_VALUES = re.compile(r"(\S+) = ([\d.]+)")
_X = "row of table 3"


@dataclass(frozen=True)
class Row:
    """A model of the table."""

    name: str
    settings: Variant


def rows(scale: Scale) -> list[Row]:
    """The rows of the table, the base model first."""
    (layers, heads), width = _BASE[scale], SIZES[scale].width
    base: dict[str, float] = {LAYERS: layers, WIDTH: width, INNER: 4 * width, HEADS: heads, KEYS: width // heads}
    base |= {DROPOUT: 0.1, SMOOTHING: 0.1}
    sizes = (0.5,) if scale == "smallest" else (0.5, 2.0)

    def row(letter: str, changes: dict[str, float]) -> Row:
        """Rows (A) and (C) name the d_k that follows from the change; d_k is a setting where it does not."""
        changed = base | changes
        follows = changed[KEYS] == changed[WIDTH] // changed[HEADS]
        settings = {key: value for name, value in changed.items() if name != KEYS for key in _SETTINGS[name]}
        described = ", ".join(f"{name} = {value:g}" for name, value in changes.items())
        return Row(f"({letter}) {described}", settings if follows else {**settings, "model.d_k": changed[KEYS]})

    described = ", ".join(f"{name} = {value:g}" for name, value in base.items())
    first = row("", {})
    return [
        Row(f"base: {described}", first.settings),
        *(row("A", {HEADS: number, KEYS: width // number}) for number in _HEADS[scale]),
        *(row("B", {KEYS: width // heads // part}) for part in ((4,) if scale == "smallest" else (4, 2))),
        *(row("C", {LAYERS: number}) for number in _LAYERS[scale]),
        *(row("C", {WIDTH: int(size * width), KEYS: int(size * width) // heads}) for size in sizes),
        *(row("C", {INNER: int(size * 4 * width)}) for size in sizes),
        *(row("D", {name: rate}) for name in (DROPOUT, SMOOTHING) for rate in _RATES[scale]),
        Row(f"(E) {LEARNED}", {**first.settings, "model.positions": "learned"}),
    ]


def measure(context: Context) -> list[Panel]:
    """Validation loss and exact translations of each row."""
    table = rows(context.scale)
    trained = train_variants(context, {row.name: row.settings for row in table})
    x = [float(number) for number in range(len(table))]
    names = [row.name for row in table]
    return [
        Panel(_X, metric, [Series("Transformer", x, [trained[name].final(metric) for name in names])], rows=names)
        for metric in (LOSS, EXACT)
    ]


@dataclass(frozen=True)
class _Table:
    """The values of each row, by name."""

    loss: dict[str, list[float]]
    exact: dict[str, list[float]]

    def rows(self, letter: str, name: str) -> dict[float, str]:
        """The rows of a letter that change a value, by that value."""
        found = (row for row in self.loss if row.startswith(f"({letter}) {name} = "))
        return {_value(row, name): row for row in found}

    @property
    def base(self) -> str:
        return next(row for row in self.loss if row.startswith("base"))

    def is_worse(self, row: str, than: str) -> bool:
        """Whether the validation loss is higher, by more than the intervals explain."""
        return is_less(self.loss[than], self.loss[row])


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether what the paper reads from its table, letter by letter, shows in these rows, too."""
    loss, exact = ({row: panel.series[0].at(x) for x, row in enumerate(panel.rows)} for panel in panels)
    table = _Table(*(dict(zip(panel.rows, panel.series[0].values, strict=True)) for panel in panels))
    heads = table.rows("A", HEADS)
    one, most, best = heads[min(heads)], heads[max(heads)], min([table.base, *heads.values()], key=loss.__getitem__)
    (narrowest, *_) = (row for _, row in sorted(table.rows("B", KEYS).items()))
    smaller, larger = _by_size(table)
    no_dropout, no_smoothing = (table.rows("D", name)[0.0] for name in (DROPOUT, SMOOTHING))
    learned = next(row for row in table.loss if row.endswith(LEARNED))
    observations = {
        "(A) one head is worse than the best number": table.is_worse(one, best),
        "(A) the largest number is worse than the best": table.is_worse(most, best),
        "(B) the smallest d_k is worse": table.is_worse(narrowest, table.base),
        "(C) smaller models are worse": all(table.is_worse(row, table.base) for row in smaller),
        "(C) larger models are better": bool(larger) and all(table.is_worse(table.base, row) for row in larger),
        "(D) without dropout it is worse": table.is_worse(no_dropout, table.base),
        "(D) label smoothing raises the loss": table.is_worse(table.base, no_smoothing),
        "(D) label smoothing gives more exact translations": is_less(
            table.exact[no_smoothing], table.exact[table.base]
        ),
        "(E) learned positions make no difference": not (
            table.is_worse(learned, table.base) or table.is_worse(table.base, learned)
        ),
    }
    seen, unseen = ([said for said, shows in observations.items() if shows == wanted] for wanted in (True, False))
    lowest, highest = min(loss, key=loss.__getitem__), max(loss, key=loss.__getitem__)
    finding = (
        f"{len(seen)} of {len(observations)} observations of the paper show here: {_listed(seen)}. Not so: "
        f"{_listed(unseen)}. Validation loss and exact translations: base {loss[table.base]:.3f} and "
        f"{exact[table.base]:.0%}, best {_short(lowest)} {loss[lowest]:.3f} and {exact[lowest]:.0%}, worst "
        f"{_short(highest)} {loss[highest]:.3f} and {exact[highest]:.0%}."
    )
    return ("holds in part" if seen and unseen else "does not hold here" if unseen else "holds"), finding


def _by_size(table: _Table) -> tuple[list[str], list[str]]:
    """The rows (C) with smaller and with larger models than the base model."""
    smaller: list[str] = []
    larger: list[str] = []
    for name in (LAYERS, WIDTH, INNER):
        of_base = _value(table.base, name)
        for value, row in table.rows("C", name).items():
            (smaller if value < of_base else larger).append(row)
    return smaller, larger


def _value(row: str, name: str) -> float:
    return next(float(value) for of, value in _VALUES.findall(row) if of == name)


def _short(row: str) -> str:
    return "base" if row.startswith("base") else row


def _listed(observations: Iterable[str]) -> str:
    return "; ".join(observations) or "none"

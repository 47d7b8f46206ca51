"""Write the speed tables of docs/performance.md and README.md, and the charts, from docs/pictures/performance.jsonl.

    python -m docs.make_performance

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is a plot of that file, whose hardware, date and
command are written below the table, or `summary`: a row for each entry of `SUMMARY`. After a new measurement, replace
the lines of its plot in that file and run this script.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.pictures.performance import PICTURES, Plot, charts, format_speedup, read_plots

DOCS = Path(__file__).parent
PAGES = (DOCS / "performance.md", DOCS.parent / "README.md")
MARKED = re.compile(r"(?<=<!-- table: )(?P<name>[\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

# Task, name of its plot, the peer it is compared with, and a group of the plot ("": all groups).
SUMMARY = (
    ("train the paper's base model, bfloat16", "train-gpu", "torch.nn.Transformer, compiled", ""),
    ("translate with the base model, bfloat16, 1 to 512 sentences", "translate-gpu", "Hugging Face generate", ""),
    ("translate with the base model, float32, 1 to 32 sentences", "translate-cpu", "CTranslate2", ""),
    ("translate with the base model, int8, 1 to 32 sentences", "translate-cpu-int8", "CTranslate2", ""),
    ("train 3+3 layers of width 256, float32", "train-cpu", "Hugging Face MarianMT, tuned", ""),
    ("tiny model, int8, 1 thread, 32 sentences, greedy", "translate-tiny-cpu", "CTranslate2", "greedy, int8, 1 thread"),
    ("tiny model, int8, 1 thread, 32 sentences, beam 4", "translate-tiny-cpu", "CTranslate2", "beam 4, int8, 1 thread"),
    ("tiny model, int8, 1 thread, one sentence, greedy", "latency-tiny-cpu", "CTranslate2", "greedy, int8, 1 thread"),
    ("tiny model, int8, 1 thread, one sentence, beam 4", "latency-tiny-cpu", "CTranslate2", "beam 4, int8, 1 thread"),
)


def page_text(page: str, plots: Mapping[str, Plot]) -> str:
    """The page with every table generated from the plots."""
    return MARKED.sub(lambda marked: f"{marked['name']} -->\n{_table(marked['name'], plots)}", page)


def _table(name: str, plots: Mapping[str, Plot]) -> str:
    if name == "summary":
        return "\n".join([*_markdown(_summary(plots)), ""])
    plot, header = plots[name], plots[name].header
    first = plot.numbers[0]
    rows = _by_measurement if "measurement" in first else _by_group if "group" in first else _by_system
    note = f" {_capitalised(header['note'])}." if "note" in header else ""
    source = f"{_capitalised(header['hardware'])}; {header['date']}; `{header['command']}`.{note}"
    return "\n".join([*_markdown(rows(plot)), "", source, ""])


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _markdown(rows: list[list[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *body]


def _summary(plots: Mapping[str, Plot]) -> list[list[str]]:
    rows = [["task", "heed", "times as fast", "as", "on"]]
    for task, name, peer, group in SUMMARY:
        plot = plots[name]
        numbers = [number for number in plot.numbers if not group or number["group"] == group]
        ours, theirs = ([line["value"] for line in numbers if line["system"] == system] for system in ("heed", peer))
        ratios = [round(plot.speedup(*values), 1) for values in zip(ours, theirs, strict=True)]
        rows.append([task, f"{_span(ours)} {plot.unit}", _span(ratios), peer, plot.header["hardware"]])
    return rows


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_measurement(plot: Plot) -> list[list[str]]:
    """A row for each measurement, with its own unit."""
    rows = ([number["measurement"], f"{_value(number)} {number['unit']}"] for number in plot.numbers)
    return [["measurement", "value"], *rows]


def _by_system(plot: Plot) -> list[list[str]]:
    """A row for each system, heed first, with heed's speedup over each peer."""
    ours = plot.numbers[0]
    rows = [["system", plot.unit, "speedup of heed"]]
    for number in plot.numbers:
        is_peer = number is not ours and not number.get("limit", False)
        speedup = format_speedup(plot.speedup(ours["value"], number["value"])) if is_peer else ""
        rows.append([number["system"], _value(number), speedup])
    return rows


def _by_group(plot: Plot) -> list[list[str]]:
    """A row for each group, a column for each system, and heed's speedup beside each peer."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for number in plot.numbers:
        groups.setdefault(number["group"], {})[number["system"]] = number
    ours, *peers = next(iter(groups.values()))
    columns = (column for peer in peers for column in (f"{peer}, {plot.unit}", "speedup of heed"))
    rows = [["workload", f"{ours}, {plot.unit}", *columns]]
    for group, by_system in groups.items():
        cells = [group, _value(by_system[ours])]
        for peer in peers:
            speedup = plot.speedup(by_system[ours]["value"], by_system[peer]["value"])
            cells += [_value(by_system[peer]), format_speedup(speedup)]
        rows.append(cells)
    return rows


def _value(number: Mapping[str, Any]) -> str:
    return f"{number['value']:,}"


def main() -> None:
    """Write the tables and draw the charts."""
    plots = read_plots()
    for page in PAGES:
        page.write_text(page_text(page.read_text(encoding="utf-8"), plots), encoding="utf-8")
    for name, svg in charts(plots).items():
        (PICTURES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()

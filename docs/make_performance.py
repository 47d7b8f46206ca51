"""Write the speed tables of docs/performance.md and README.md from docs/pictures/performance.jsonl.

    python docs/make_performance.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is the "plot" of its lines, whose hardware, date
and command stand below it, or "summary": a row for each entry of `SUMMARY`. Whoever measures anew replaces lines of the
file, and runs this script and pictures/performance.py.
"""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGES = (DOCS / "performance.md", DOCS.parent / "README.md")
NUMBERS = DOCS / "pictures" / "performance.jsonl"
MARKED = re.compile(r"(?<=<!-- table: )(?P<name>[\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

Line = dict[str, Any]

# What is measured, the plot that has it, the peer it is compared with, and the groups of the plot ("": all).
SUMMARY = (
    ("train the paper's base model, bfloat16", "train-gpu", "torch.nn.Transformer, compiled", ""),
    ("translate with it, bfloat16, 1 to 512 sentences", "translate-gpu", "Hugging Face generate", ""),
    ("translate with it, float32, 1 to 32 sentences", "translate-cpu", "CTranslate2", ""),
    ("translate with it, int8, 1 to 32 sentences", "translate-cpu-int8", "CTranslate2", ""),
    ("train 3+3 layers of width 256, float32", "train-cpu", "Hugging Face MarianMT, tuned", ""),
    ("tiny model, 1 thread, 100 sentences, greedy", "translate-tiny-cpu", "CTranslate2", "greedy, 1 thread"),
    ("tiny model, 1 thread, 100 sentences, beam 4", "translate-tiny-cpu", "CTranslate2", "beam 4, 1 thread"),
    ("tiny model, 1 thread, one sentence, greedy", "latency-tiny-cpu", "CTranslate2", "greedy, 1 thread"),
    ("tiny model, 1 thread, one sentence, beam 4", "latency-tiny-cpu", "CTranslate2", "beam 4, 1 thread"),
)


def page_text(page: str, lines: list[Line]) -> str:
    """The page with every table written anew."""
    return MARKED.sub(lambda marked: f"{marked['name']} -->\n{_table(marked['name'], lines)}", page)


def _table(name: str, lines: list[Line]) -> str:
    if name == "summary":
        return "\n".join([*_markdown(_summary(lines)), ""])
    (header,) = (line for line in lines if line["plot"] == name and "title" in line)
    values = [line for line in lines if line["plot"] == name and "title" not in line]
    by = _by_measurement if "measurement" in values[0] else _by_group if "group" in values[0] else _by_system
    rows = _markdown(by(header, values))
    note = f" {header['note'][0].upper()}{header['note'][1:]}." if "note" in header else ""
    source = f"{header['hardware'][0].upper()}{header['hardware'][1:]}; {header['date']}; `{header['command']}`.{note}"
    return "\n".join([*rows, "", source, ""])


def _markdown(rows: list[list[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *body]


def _summary(lines: list[Line]) -> list[list[str]]:
    rows = [["task", "heed", "times as fast", "as", "on"]]
    for task, name, peer, group in SUMMARY:
        header, *lines_of_plot = (line for line in lines if line["plot"] == name)
        values = [line for line in lines_of_plot if not group or line["group"] == group]
        ours, theirs = ([line["value"] for line in values if line["system"] == system] for system in ("heed", peer))
        pairs = zip(theirs, ours, strict=True) if header.get("lower is better") else zip(ours, theirs, strict=True)
        ratios = [round(over / under, 1) for over, under in pairs]
        unit = header["unit"].partition(",")[0]
        rows.append([task, f"{_span(ours)} {unit}", _span(ratios), peer, header["hardware"]])
    return rows


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_measurement(_header: Line, values: list[Line]) -> list[list[str]]:
    return [["measurement", "value"], *([line["measurement"], f"{_number(line)} {line['unit']}"] for line in values)]


def _by_system(header: Line, values: list[Line]) -> list[list[str]]:
    """A row for each system, heed first."""
    ours = values[0]["value"]
    rows = [["system", header["unit"], "heed is faster by"]]
    for line in values:
        is_peer = line is not values[0] and not line.get("limit", False)
        rows.append([line["system"], _number(line), _times(ours / line["value"]) if is_peer else ""])
    return rows


def _by_group(header: Line, values: list[Line]) -> list[list[str]]:
    """A row for each group of values, a column for each system, and beside each peer how much faster heed is."""
    groups: dict[str, dict[str, Line]] = {}
    for line in values:
        groups.setdefault(line["group"], {})[line["system"]] = line
    ours, *peers = next(iter(groups.values()))
    rows = [[header["unit"], ours, *(name for peer in peers for name in (peer, "heed is faster by"))]]
    for group, by_system in groups.items():
        cells = [group, _number(by_system[ours])]
        for peer in peers:
            ratio = by_system[ours]["value"] / by_system[peer]["value"]
            cells += [_number(by_system[peer]), _times(1 / ratio if header.get("lower is better") else ratio)]
        rows.append(cells)
    return rows


def _number(line: Line) -> str:
    return f"{line['value']:,}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


def read_lines() -> list[Line]:
    """The lines of the file of numbers."""
    return [json.loads(line) for line in NUMBERS.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(page_text(page.read_text(encoding="utf-8"), read_lines()), encoding="utf-8")

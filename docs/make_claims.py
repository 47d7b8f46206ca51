"""Write the measured parts of docs/claims.md from the results in docs/pictures/claims.

    heed claims --out claims
    python -m docs.make_claims claims

copies the results of a folder that `heed claims` wrote and draws their charts, then writes each block between
`<!-- claim: NAME -->` and `<!-- end -->`: statement, verdict, finding, numbers, chart and where they were measured.
Results of full scale have a folder and blocks of their own: `<!-- claim: full/NAME -->`.
"""

import re
import shutil
import sys
import textwrap
from pathlib import Path

from heed.claims.claim import Claim
from heed.claims.experiments import CLAIMS
from heed.claims.result import ClaimResult, Panel
from heed.claims.run import charts

DOCS = Path(__file__).parent
PAGE, RESULTS = DOCS / "claims.md", DOCS / "pictures" / "claims"
MARKED = re.compile(r"(?<=<!-- claim: )(?P<name>(full/)?[\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def page_text(page: str) -> str:
    """The page with every block written from its result."""
    return MARKED.sub(lambda marked: f"{marked['name']} -->\n{_block(marked['name'])}", page)


def _block(name: str) -> str:
    result = ClaimResult.read(RESULTS / f"{name}.json")
    claim, folder = CLAIMS[result.claim], (RESULTS / name).parent.relative_to(DOCS)
    repeats = len(result.panels[0].series[0].values[0])
    scale = "" if result.scale == "small" else f" --scale {result.scale}"
    files = " --source … --target … --valid-source … --valid-target …" if claim.needs_corpus else ""
    lines = [
        "",
        _wrapped(f"> {claim.statement} ({claim.source})", "> "),
        *([">", _wrapped(f"> {said_in_notes(claim)}", "> ")] if claim.notes else []),
        "",
        _wrapped(f"Verdict: **{result.verdict}**. {result.finding}"),
        "",
    ]
    for picture, panel in zip(charts(result), result.panels, strict=True):
        lines += [f"![{panel.y_label} by {panel.x_label}]({folder}/{picture})", "", *table(panel), ""]
    lines += [_wrapped(f"- {note}", "  ") for note in result.notes] + ([""] if result.notes else [])
    corpus = f"text: {result.corpus}; " if result.corpus else ""
    lines += [
        _wrapped(
            f"Means of {repeats} {claim.repeated} with 95 % intervals; {corpus}"
            f"{result.hardware}; {result.date}; {result.seconds:.0f} s; "
            f"`heed claims {claim.name}{scale}{files}`."
        ),
        "",
    ]
    return "\n".join(lines)


def said_in_notes(claim: Claim) -> str:
    """The notes in their own words, each with its number in the list of notes on the page."""
    quotes = "; ".join(f"note {number}: “{words}”" for number, words in claim.notes)
    return f"{quotes[0].upper()}{quotes[1:]}."


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(panel: Panel) -> list[str]:
    head = [panel.x_label, *(series.name for series in panel.series)]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    cells = [
        {x: _number(*number) for x, *number in zip(series.x, series.means(), series.half_widths(), strict=True)}
        for series in panel.series
    ]
    measured = sorted({x for series in panel.series for x in series.x})
    return rows + [
        f"| {panel.rows[int(x)] if panel.rows else _axis_number(x)} | "
        f"{' | '.join(of_series.get(x, '') for of_series in cells)} |"
        for x in measured
    ]


def _axis_number(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) or x >= 10 else f"{x:.2g}"


def _number(mean: float, half_width: float) -> str:
    values = (
        f"{mean:,.0f}" if mean >= 1000 else f"{mean:.3g}",
        f"{half_width:,.0f}" if mean >= 1000 else f"{half_width:.2g}",
    )
    return " ± ".join(values if half_width else values[:1])


def main() -> None:
    """Take over the results of a folder, if one is given, and write the page."""
    for folder in map(Path, sys.argv[1:]):
        for file in folder.glob("*.json"):
            result = ClaimResult.read(file)
            recorded = RESULTS / "full" if result.scale == "full" else RESULTS
            recorded.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, recorded / file.name)
            for picture, svg in charts(result).items():
                (recorded / picture).write_text(svg, encoding="utf-8")
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

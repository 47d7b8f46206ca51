"""Runs claims and keeps their results: NAME.json and a chart per panel in a folder, which is not measured again."""

from collections.abc import Callable
from pathlib import Path

from heed.claims.claim import Claim, Context
from heed.claims.result import ClaimResult, Scale
from heed.errors import ConfigError


def run_claim(claim: Claim, scale: Scale, folder: Path, report: Callable[[str], None]) -> ClaimResult:
    """The result of a claim, read from the folder if it is there, else measured and written to it."""
    file = folder / f"{claim.name}.json"
    if file.exists():
        result = ClaimResult.read(file)
        if result.scale != scale:
            raise ConfigError(f"{file} has the scale {result.scale!r}, not {scale!r}: choose another folder")
        report(f"{claim.name}: as measured on {result.date} ({file})")
        return result
    folder.mkdir(parents=True, exist_ok=True)
    report(f"{claim.name}: measuring …")
    context = Context(scale, folder / (claim.runs or claim.name), lambda message: report(f"{claim.name}: {message}"))
    result = claim.run(context)
    for name, svg in charts(result).items():
        (folder / name).write_text(svg, encoding="utf-8")
    result.write(file)
    report(f"{claim.name}: {result.verdict}, after {result.seconds:.0f} s")
    return result


def charts(result: ClaimResult) -> dict[str, str]:
    """The chart of each panel as SVG, by file name."""
    names = [f"{result.claim}.svg", *(f"{result.claim}-{number}.svg" for number in range(2, len(result.panels) + 1))]
    return {name: panel.svg() for name, panel in zip(names, result.panels, strict=True)}

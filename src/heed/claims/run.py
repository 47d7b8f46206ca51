"""Runs claims and keeps their results: NAME.json and a chart per panel in a folder, which is not measured again."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from heed.claims.claim import Claim, Context
from heed.claims.parallel_corpus import ParallelCorpus
from heed.claims.processes import JobPool, default_jobs
from heed.claims.result import ClaimResult, Scale
from heed.errors import ConfigError, HeedError


def run_claim(
    claim: Claim,
    scale: Scale,
    folder: Path,
    report: Callable[[str], None],
    *,
    corpus: ParallelCorpus | None = None,
    jobs: int | None = None,
    pool: JobPool | None = None,
) -> ClaimResult:
    """The result of a claim, read from the folder if it is there, else measured and written to it.

    corpus: natural text, for claims that need it. jobs: models to train at the same time; none: as many as there are
    cores. pool: the processes that train them; none: of this claim alone.
    """
    file = folder / f"{claim.name}.json"
    if file.exists():
        result = ClaimResult.read(file)
        if result.scale != scale:
            raise ConfigError(f"{file} has the scale {result.scale!r}, not {scale!r}: choose another folder")
        if claim.needs_corpus and corpus is not None and result.corpus != corpus.description:
            raise ConfigError(
                f"{file} was measured on another corpus ({result.corpus}), not on {corpus.description}: choose another "
                "folder"
            )
        report(f"{claim.name}: as measured on {result.date} ({file})")
        return result
    folder.mkdir(parents=True, exist_ok=True)
    report(f"{claim.name}: measuring …")
    runs, jobs = folder / (claim.runs or claim.name), default_jobs(scale) if jobs is None else jobs
    context = Context(scale, runs, lambda message: report(f"{claim.name}: {message}"), jobs, pool, corpus)
    result = _measured(claim, context, folder / f".{claim.name}.seconds")
    for name, svg in charts(result).items():
        (folder / name).write_text(svg, encoding="utf-8")
    result.write(file)
    report(f"{claim.name}: {result.verdict}, after {result.seconds:.0f} s")
    return result


def _measured(claim: Claim, context: Context, elapsed: Path) -> ClaimResult:
    """The result of a claim; its seconds include those of interrupted measurements, which the file keeps."""
    before = float(elapsed.read_text(encoding="utf-8")) if elapsed.exists() else 0.0
    began = time.monotonic()
    try:
        result = claim.run(context)
    except BaseException:
        elapsed.write_text(f"{before + time.monotonic() - began:.1f}", encoding="utf-8")
        raise
    elapsed.unlink(missing_ok=True)
    return replace(result, seconds=round(before + result.seconds, 1))


def run_claims(
    claims: Sequence[Claim],
    scale: Scale,
    folder: Path,
    report: Callable[[str], None],
    *,
    corpus: ParallelCorpus | None = None,
    jobs: int | None = None,
) -> tuple[list[ClaimResult], list[str]]:
    """The results of several claims, and the names of those that failed: an error is reported and stops no other.

    Claims that need a corpus are left out, and reported, where there is none.
    """
    results, failed = [], []
    jobs = default_jobs(scale) if jobs is None else jobs
    with JobPool(jobs) as pool:
        for claim in claims:
            if claim.needs_corpus and corpus is None and not (folder / f"{claim.name}.json").exists():
                report(f"{claim.name}: left out, since it needs a parallel corpus and none is given")
                continue
            try:
                results.append(run_claim(claim, scale, folder, report, corpus=corpus, jobs=jobs, pool=pool))
            except HeedError as error:
                report(f"{claim.name}: {error}")
                failed.append(claim.name)
            except Exception:  # a bug in one experiment must not cost the results of the others
                report(f"{claim.name}: {traceback.format_exc()}")
                failed.append(claim.name)
    return results, failed


def charts(result: ClaimResult) -> dict[str, str]:
    """The chart of each panel as SVG, by file name."""
    names = [f"{result.claim}.svg", *(f"{result.claim}-{number}.svg" for number in range(2, len(result.panels) + 1))]
    return {name: panel.svg() for name, panel in zip(names, result.panels, strict=True)}

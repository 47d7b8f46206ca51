"""The claim on natural text: equal sizes, a search that finds the best neighbour, and runs that are not repeated."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heed.claims import natural_runs, natural_text
from heed.claims.claim import Context
from heed.claims.experiments import CLAIMS
from heed.claims.natural_models import SIZES, SearchedSettings, best_of, described, neighbours, settings, shape, start
from heed.claims.natural_runs import FinishedRun, Runs, vocabulary
from heed.claims.parallel_corpus import ParallelCorpus, length_groups
from heed.claims.parameters import parameters
from heed.claims.processes import JobPool, run_jobs
from heed.claims.quality import MODELS, TRANSFORMER, VECTOR
from heed.claims.result import ClaimResult, Panel, Scale, Series
from heed.claims.run import run_claim, run_claims
from heed.config import ModelConfig
from heed.errors import ConfigError, DataError
from tests.cli.command import heed

FULL = SIZES["full"]


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_depth_have_equal_parameters_within_five_per_cent(scale: Scale, model: str) -> None:
    size, vocab_size = SIZES[scale], 8000
    expected = parameters(shape(TRANSFORMER, size.layers[0], size.width, size.layers[0], vocab_size), vocab_size)
    for layers in size.layers:
        shaped = shape(model, layers, size.width, size.layers[0], vocab_size)
        assert abs(parameters(shaped, vocab_size) / expected - 1) < 0.05
        ModelConfig.model_validate({**shaped, "vocab_size": vocab_size})


def test_the_transformer_of_the_full_scale_is_the_tiny_preset() -> None:
    shaped = shape(TRANSFORMER, 4, FULL.width, 4, 9900)
    tiny = ModelConfig.preset("tiny", vocab_size=9900)
    assert {name: getattr(tiny, name) for name in shaped} == shaped
    assert parameters(shaped, 9900) == 2_592_768


def test_the_search_tries_the_neighbours_of_the_best_so_far() -> None:
    first = start(FULL)
    assert [candidate.rate for candidate in neighbours(first, 0, FULL)] == [0.01, 0.005, 0.02]
    faster = replace(first, rate=0.02)
    assert neighbours(faster, 1, FULL) == [
        replace(faster, layers=2),
        replace(faster, layers=6),
        replace(faster, rate=0.04),
    ]
    assert len(neighbours(first, 1, FULL)) == 2
    assert [candidate.dropout for candidate in neighbours(first, 2, FULL)] == [0.2, 0.4]
    assert [candidate.dropout for candidate in neighbours(replace(first, dropout=0.1), 2, FULL)] == [0.2]
    assert best_of({first: 30.0, faster: 31.0}) == faster


def test_the_learning_rate_is_inversely_proportional_to_the_width() -> None:
    candidate = SearchedSettings(2, 0.01, 0.3)
    of_run = settings("LSTM, attention", candidate, FULL, 8000)
    assert of_run["training.learning_rate"] * of_run["model.d_model"] == pytest.approx(1.28)
    assert "2+2 layers, width" in described("LSTM, attention", candidate, FULL, 8000)


def test_groups_of_lengths_are_about_equally_large() -> None:
    assert length_groups([3, 1, 2, 4, 5, 6, 8, 7, 9, 10], 5) == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert length_groups([4, 4, 4], 2) == [(0, 4)]


def test_a_description_tells_texts_apart(parallel_corpus: ParallelCorpus) -> None:
    description = parallel_corpus.description
    assert description.startswith("train.source and train.target, 40 pairs, digest ")
    assert "; validation: valid.source and valid.target, 12 pairs, digest " in description
    turned = replace(parallel_corpus, source=parallel_corpus.target, target=parallel_corpus.source)
    assert turned.description.split("digest ")[1] != description.split("digest ")[1]


def one_run(context: Context, corpus: ParallelCorpus) -> dict[str, dict[str, Any]]:
    size = SIZES["smallest"]
    of_run = settings("GRU, attention", start(size), size, vocabulary(context, corpus))
    return {"GRU": {**of_run, "training.max_steps": 1, "training.validate_every": 1}}


def test_a_finished_run_is_known_by_its_line_of_json(
    tmp_path: Path, parallel_corpus: ParallelCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context("smallest", tmp_path / "a", lambda _: None)
    runs = one_run(context, parallel_corpus)
    finished = Runs(context, parallel_corpus, JobPool(1)).finished(runs)
    line = (tmp_path / "a" / natural_runs.RUNS).read_text()
    assert FinishedRun.from_json(line) == finished["GRU"]
    elsewhere = replace(context, folder=tmp_path / "b")
    elsewhere.folder.mkdir()
    (elsewhere.folder / natural_runs.RUNS).write_text(line)
    monkeypatch.setattr(natural_runs, "train_model", pytest.fail)
    assert Runs(elsewhere, parallel_corpus, JobPool(1)).finished(runs) == finished


def test_a_run_that_fails_is_reported_and_stops_no_other(tmp_path: Path, parallel_corpus: ParallelCorpus) -> None:
    reports: list[str] = []
    context = Context("smallest", tmp_path, reports.append)
    runs = one_run(context, parallel_corpus)
    broken = {"broken": {**runs["GRU"], "model.heads": 3}}
    assert list(Runs(context, parallel_corpus, JobPool(1)).finished({**broken, **runs})) == ["GRU"]
    assert any(report.startswith("left out: broken: ") and "heads = 3" in report for report in reports)


def test_the_jobs_of_a_process_that_dies_are_tried_once_more(tmp_path: Path) -> None:
    results: dict[str, int] = {}
    reports: list[str] = []
    jobs = {"dies once": (str(tmp_path / "dead"),), "lives": ("",), "dies": ("always",)}
    errors = run_jobs(jobs, dies_once, results.__setitem__, 2, reports.append)
    assert (results, list(errors)) == ({"dies once": 1, "lives": 1}, ["dies"])
    assert errors["dies"].startswith("concurrent.futures.process.BrokenProcessPool: A process in the process pool was")
    assert any(report.startswith("dies failed: ") for report in reports)


def dies_once(file: str) -> int:
    if file == "always":
        os._exit(1)
    if file and not Path(file).exists():
        Path(file).touch()
        os._exit(1)
    return 1


def test_jobs_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "from heed.claims.processes import JobPool, run_jobs\n"
        "from tests.claims.test_natural_text import sleeps\n"
        f"jobs = {{name: ({str(tmp_path)!r} + '/' + name,) for name in 'ab'}}\n"
        "if __name__ == '__main__':\n    run_jobs(jobs, sleeps, print, 2, print)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path})
    files = [tmp_path / name for name in "ab"]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    parent.kill()
    parent.wait()
    until(lambda: not any(runs(file.read_text()) for file in files))


def sleeps(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def runs(process: str) -> bool:
    """Whether it has a command line: a process that has ended and was not waited for has none."""
    file = Path("/proc", process, "cmdline")
    return file.exists() and bool(file.read_bytes())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_claim_that_fails_stops_no_other_and_one_without_its_corpus_is_left_out(tmp_path: Path) -> None:
    reports: list[str] = []
    claims = [CLAIMS[name] for name in ("natural-text", "path-length", "scaling")]

    def fails(_: Context) -> list[Panel]:
        raise ValueError("a bug")

    claims[1] = replace(claims[1], measure=fails)
    results, failed = run_claims(claims, "smallest", tmp_path, reports.append)
    assert ([result.claim for result in results], failed) == (["scaling"], ["path-length"])
    assert "natural-text: left out, since it needs a parallel corpus and none is given" in reports
    assert any("ValueError: a bug" in report for report in reports)


def test_the_command_refuses_an_incomplete_corpus(tmp_path: Path, parallel_corpus: ParallelCorpus) -> None:
    refused = heed("claims", "natural-text", "--out", str(tmp_path))
    assert refused.returncode == 2
    assert "natural-text needs a parallel corpus: give --source, --target, --valid-source and" in refused.stderr
    refused = heed("claims", "--source", str(parallel_corpus.source), "--out", str(tmp_path))
    assert refused.returncode == 2
    assert "a corpus has four files: --target and --valid-source and --valid-target missing" in refused.stderr
    with pytest.raises(ConfigError, match=r"this claim needs a parallel corpus"):
        natural_text.measure(Context("smallest", tmp_path, lambda _: None))
    with pytest.raises(DataError):
        replace(parallel_corpus, target=parallel_corpus.valid_target).description  # noqa: B018 - reads the files


def test_a_result_on_another_corpus_is_an_error(tmp_path: Path, parallel_corpus: ParallelCorpus) -> None:
    claim, panel = CLAIMS["natural-text"], Panel("x", "y", [Series("a", [1.0], [[1.0, 2.0]])])
    result = ClaimResult(claim.name, "small", [panel], "holds", "a", "b", "2026-01-01", 1.0, "a.en and a.de")
    result.write(tmp_path / "natural-text.json")
    assert run_claim(claim, "small", tmp_path, lambda _: None) == result
    with pytest.raises(ConfigError, match=r"measured on another corpus \(a.en and a.de\), not on train.source and"):
        run_claim(claim, "small", tmp_path, lambda _: None, corpus=parallel_corpus)


def judged(transformer: float, in_time: float) -> str:
    def panel(of_transformer: float) -> Panel:
        values = dict.fromkeys(MODELS, 30.0) | {TRANSFORMER: of_transformer}
        return Panel("x", "BLEU", [Series(name, [1.0], [[x - 0.1, x, x + 0.1]]) for name, x in values.items()])

    verdict, finding = natural_text.judge([panel(transformer), panel(in_time), panel(transformer)])
    assert f"Transformer {transformer:.1f}" in finding
    assert VECTOR in finding
    return verdict


def test_the_verdict_needs_the_transformer_ahead_by_steps_and_by_time() -> None:
    assert judged(40.0, 40.0) == "holds"
    assert judged(30.0, 40.0) == "holds in part"
    assert judged(20.0, 20.0) == "does not hold here"

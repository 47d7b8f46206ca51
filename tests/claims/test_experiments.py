"""The parts that experiments share: trained variants, strings, calibration, and how verdicts follow from numbers."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from docs.make_claims import table as book_table

from heed.claims import (
    depth,
    feed_forward,
    heads,
    quality,
    regularization,
    residuals,
    scaling_training,
    table_3,
    warmup,
)
from heed.claims.calibration import expected_calibration_error
from heed.claims.claim import Context
from heed.claims.feed_forward import LINEAR, NARROW, REMOVED, USUAL
from heed.claims.processes import JobPool
from heed.claims.result import Panel, Series, Verdict, is_less
from heed.claims.runs import results_of, time_left, train_runs
from heed.claims.scaling import SCALED, UNSCALED
from heed.claims.translation import EXACT, LOSS, train_variants, write_pairs
from heed.errors import FolderError


def silent(_: str) -> None:
    pass


def panel(values: dict[str, list[float]], label: str = LOSS, x: tuple[float, ...] = (1.0, 2.0)) -> Panel:
    """Curves with three seeds that differ by 0.001."""
    seeds = {name: [[value - 0.001, value, value + 0.001] for value in row] for name, row in values.items()}
    return Panel("x", label, [Series(name, list(x), rows) for name, rows in seeds.items()])


def test_equal_variants_share_their_runs(tmp_path: Path) -> None:
    context = Context("smallest", tmp_path, silent)
    trained = train_variants(context, {"base": {}, "same": {"model.heads": 4}, "other": {"model.heads": 2}})
    assert trained["base"].folders == trained["same"].folders
    assert sorted(folder.name for folder in tmp_path.glob("*seed*")) == [
        "heads=2,seed=1",
        "heads=2,seed=2",
        "seed=1",
        "seed=2",
    ]
    assert trained["other"].curve(LOSS).keys() == {1}
    assert all(0 <= share <= 1 for share in trained["other"].final(EXACT))
    fewer = train_variants(context, {"base": {}}, pairs=10, seeds=range(1, 2))
    assert [folder.name for folder in fewer["base"].folders] == ["pairs=10,seed=1"]


def test_models_are_trained_in_processes_of_their_own_and_only_once(tmp_path: Path) -> None:
    reports: list[str] = []
    context = Context("smallest", tmp_path, reports.append, jobs=2)
    pairs = write_pairs(tmp_path / "pairs.jsonl", "train", 20)
    sizes = {"model.d_model": 16, "model.heads": 2, "model.d_ff": 16, "training.max_steps": 1, "data.hold_out": 0}
    runs = {f"{seed}": {"pairs": pairs, "settings": {**sizes, "training.seed": seed}} for seed in (1, 2)}
    folders = train_runs(context, runs)
    assert all((folder / "manifest.json").exists() for folder in folders.values())
    assert reports[0] == "training 2 models"
    assert sorted(reports[1:])[0].startswith("trained model 1 of 2: ")
    assert train_runs(context, runs) == folders
    assert len(reports) == 3
    longer = {"1": {"pairs": pairs, "settings": {**sizes, "training.max_steps": 2}}}
    with pytest.raises(FolderError, match=r"1 has a run with training\.max_steps = 1, not 2: remove it, or choose"):
        train_runs(context, longer)


def test_the_processes_of_one_claim_train_the_models_of_the_next(tmp_path: Path) -> None:
    jobs: dict[str, tuple[()]] = {str(number): () for number in range(4)}
    with JobPool(2) as pool:
        context = Context("smallest", tmp_path, silent, jobs=2, pool=pool)
        first, second = (set(results_of(context, os.getpid, jobs).values()) for _ in range(2))
    assert len(first | second) <= 2
    assert os.getpid() not in first | second


def test_models_with_more_layers_are_trained_first(tmp_path: Path) -> None:
    reports: list[str] = []
    layers = ({"model.encoder_layers": number, "model.decoder_layers": number} for number in (1, 2))
    train_variants(
        Context("smallest", tmp_path, reports.append), dict(zip("ab", layers, strict=True)), seeds=range(1, 2)
    )
    assert reports[1] == "trained model 1 of 2: seed=1"
    assert reports[2].startswith("trained model 2 of 2: encoder_layers=1,decoder_layers=1,seed=1")


def test_the_time_that_jobs_will_take_is_estimated_from_those_that_are_done() -> None:
    began = time.monotonic() - 600
    assert time_left(began, 2, 6) == " (about 30 min to go)"
    assert time_left(began, 8, 0) == time_left(time.monotonic(), 1, 1) == ""


def test_a_mean_is_less_if_the_intervals_cannot_explain_the_difference() -> None:
    assert is_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    assert not is_less([1.0, 1.1, 0.9], [1.1, 1.2, 1.0])
    assert not is_less([2.0, 2.1, 1.9], [1.0, 1.1, 0.9])


def test_the_calibration_error_of_known_predictions() -> None:
    confidence = torch.tensor([0.95, 0.95, 0.55, 0.55])
    assert expected_calibration_error(confidence, torch.tensor([True, True, True, False])) == pytest.approx(0.05)
    assert expected_calibration_error(torch.ones(2), torch.tensor([False, False])) == pytest.approx(1.0)


THREE = (1.0, 2.0, 6.0)
EVEN = panel({"label smoothing 0": [0.1, 0.1], "label smoothing 0.1": [0.1, 0.1]})


def by_norm(post_without_warmup: float) -> Panel:
    losses = {f"{norm}-norm, {words}": [5.0, 1.0] for norm in warmup.NORMS for words in ("warm-up", "no warm-up")}
    return panel({**losses, "post-norm, no warm-up": [5.0, post_without_warmup]})


def by_depth(losses: list[float]) -> list[Panel]:
    return [panel({"Transformer": [0.4, 0.5, 0.6]}, EXACT, THREE), panel({"Transformer": losses}, LOSS, THREE)]


def with_residuals(gradient_without: float) -> list[Panel]:
    gradients = panel({residuals.WITH: [1.0, 1.0], residuals.WITHOUT: [1.0, gradient_without]})
    return [
        gradients,
        gradients,
        panel({"2": [2.0, 1.0], "2 without": [2.0, 1.0], "6": [2.0, 1.0], "6 without": [2.0, 2.0]}),
    ]


def scaled(loss_without: float) -> list[Panel]:
    exact = panel({SCALED: [0.5, 0.5], UNSCALED: [0.5, 0.1]}, EXACT)
    return [exact, panel({SCALED: [1.0, 1.0], UNSCALED: [1.0, loss_without]})]


def feed_forwards(linear: float) -> list[Panel]:
    names = (REMOVED, LINEAR, NARROW, USUAL)
    losses = {REMOVED: [2.0, 2.0], LINEAR: [2.0, linear], NARROW: [2.0, 1.0], USUAL: [2.0, 1.0]}
    return [panel({name: [0.1, 0.5] for name in names}, EXACT), panel(losses)]


def smoothed(share: float) -> list[Panel]:
    exact = panel({"label smoothing 0": [0.1, 0.2], "label smoothing 0.1": [0.1, share]}, EXACT)
    return [exact, panel({"label smoothing 0": [1.0, 1.0], "label smoothing 0.1": [1.0, 2.0]}), EVEN]


ROWS = [row.name for row in table_3.rows("small")]
WORSE = ("(A) h = 1,", "(A) h = 16", "(B)", "(C) N = 1", "(C) d_model = 32", "(C) d_ff = 128", "(D) P_drop = 0")
BETTER = ("(C) N = 4", "(C) d_model = 128", "(C) d_ff = 512", "(D) ε_ls = 0")


def table(worse: tuple[str, ...], better: tuple[str, ...], exact_without_smoothing: float = 0.1) -> list[Panel]:
    """Table 3, with the rows that have a higher and a lower loss than the base model."""
    losses = [1.0 + row.startswith(worse) - 0.5 * row.startswith(better) for row in ROWS]
    exact = [exact_without_smoothing if row == "(D) ε_ls = 0" else 0.5 for row in ROWS]
    panels = []
    for label, values in ((LOSS, losses), (EXACT, exact)):
        filled = panel({"Transformer": values}, label, tuple(float(number) for number in range(len(ROWS))))
        panels.append(Panel("row", label, filled.series, rows=ROWS))
    return panels


def qualities(transformer: float) -> list[Panel]:
    shares = {name: [0.1, 0.5] for name in quality.MODELS}
    return [panel({**shares, quality.TRANSFORMER: [0.1, transformer]}, EXACT)] * 3


@pytest.mark.parametrize(
    ("judge", "panels", "verdict"),
    [
        (heads.judge, by_depth([3.0, 2.0, 3.0]), "holds"),
        (heads.judge, by_depth([2.0, 2.0, 3.0]), "holds in part"),
        (depth.judge, by_depth([3.0, 2.0, 1.0]), "holds"),
        (depth.judge, by_depth([1.0, 2.0, 3.0]), "does not hold here"),
        (warmup.judge, [by_norm(2.0)], "holds"),
        (warmup.judge, [by_norm(1.0)], "does not hold here"),
        (scaling_training.judge, scaled(2.0), "holds"),
        (scaling_training.judge, scaled(1.0), "does not hold here"),
        (residuals.judge, with_residuals(0.01), "holds"),
        (residuals.judge, with_residuals(1.0), "holds in part"),
        (feed_forward.judge, feed_forwards(2.0), "holds"),
        (feed_forward.judge, feed_forwards(1.0), "holds in part"),
        (regularization.judge, smoothed(0.3), "holds"),
        (regularization.judge, smoothed(0.2), "holds in part"),
        (table_3.judge, table(WORSE, BETTER), "holds"),
        (table_3.judge, table(WORSE[1:], BETTER), "holds in part"),
        (table_3.judge, table((*BETTER, "(E)"), (*WORSE[1:], "(A) h = 1,"), 0.5), "does not hold here"),
        (quality.judge, qualities(0.9), "holds"),
        (quality.judge, qualities(0.5), "does not hold here"),
    ],
)
def test_verdicts_follow_from_the_numbers(
    judge: Callable[[list[Panel]], tuple[Verdict, str]], panels: list[Panel], verdict: Verdict
) -> None:
    found, finding = judge(panels)
    assert found == verdict
    assert finding.endswith(".")


def test_table_3_has_the_papers_rows_and_changes_what_they_name() -> None:
    assert [row.name[:3] for row in table_3.rows("full")[1:]] == (
        ["(A)"] * 4 + ["(B)"] * 2 + ["(C)"] * 7 + ["(D)"] * 4 + ["(E)"]
    )
    rows = {row.name: row.settings for row in table_3.rows("small")}
    base, *_ = rows.values()
    changed = {name: dict(settings.items() - base.items()) for name, settings in rows.items()}
    assert changed["(A) h = 16, d_k = 4"] == {"model.heads": 16}
    assert changed["(B) d_k = 4"] == {"model.d_k": 4}
    assert changed["(C) N = 4"] == {"model.encoder_layers": 4, "model.decoder_layers": 4}
    assert changed["(C) d_model = 32, d_k = 8"] == {"model.d_model": 32}
    assert changed["(D) ε_ls = 0"] == {"training.label_smoothing": 0.0}
    assert changed["(E) learned positions"] == {"model.positions": "learned"}
    assert ROWS[0] == "base: N = 2, d_model = 64, d_ff = 256, h = 4, d_k = 16, P_drop = 0.1, ε_ls = 0.1"
    _, finding = table_3.judge(table(WORSE[1:], BETTER))
    assert finding.startswith("8 of 9 observations of the paper show here: (A) the largest number is worse")
    assert (
        "Not so: (A) one head is worse than the best number. Validation loss and exact translations: base 1" in finding
    )


def test_rows_are_drawn_and_tabulated_by_their_names() -> None:
    (losses, _) = table(WORSE, BETTER)
    svg = losses.svg()
    assert all(row in svg for row in ROWS[1:])
    lines = book_table(losses)
    assert lines[0] == "| row | Transformer |"
    assert lines[2].startswith("| base: N = 2, ")
    assert lines[3] == "| (A) h = 1, d_k = 64 | 2 ± 0.0025 |"

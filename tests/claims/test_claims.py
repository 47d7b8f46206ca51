"""The experiments of `heed claims`: each runs, its result can be read back, and the book shows what was recorded."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from docs.make_claims import MARKED, PAGE, RESULTS, page_text

from heed.claims import bottleneck, positions, quality, translation
from heed.claims.claim import Context
from heed.claims.experiments import CLAIMS
from heed.claims.parallel_corpus import ParallelCorpus
from heed.claims.parameters import parameters, with_parameters
from heed.claims.result import ClaimResult, Panel, Scale, Series
from heed.claims.run import charts, run_claim
from heed.claims.scaling import SCALED, UNSCALED, judge, measure
from heed.claims.strings import SIZES
from heed.errors import ConfigError, FolderError
from tests.cli.command import heed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all claims, which share trained models."""
    return tmp_path_factory.mktemp("claims")


@pytest.mark.parametrize("name", CLAIMS)
def test_the_smallest_version_runs_and_is_not_measured_twice(
    name: str, folder: Path, parallel_corpus: ParallelCorpus
) -> None:
    reports: list[str] = []
    result = run_claim(CLAIMS[name], "smallest", folder, reports.append, corpus=parallel_corpus)
    assert result.verdict in ("holds", "holds in part", "does not hold here")
    assert all(len(values) == 2 for panel in result.panels for series in panel.series for values in series.values)
    for picture, svg in charts(result).items():
        assert (folder / picture).read_text() == svg
    assert run_claim(CLAIMS[name], "smallest", folder, reports.append) == result
    assert reports[-1].startswith(f"{name}: as measured on {result.date}")
    with pytest.raises(ConfigError, match=r"has the scale 'smallest', not 'small': choose another folder"):
        run_claim(CLAIMS[name], "small", folder, reports.append)


def test_the_time_of_an_interrupted_measurement_counts(tmp_path: Path) -> None:
    def interrupted(_: Context) -> list[Panel]:
        raise KeyboardInterrupt

    def silent(_: str) -> None:
        pass

    (tmp_path / ".scaling.seconds").write_text("100.0")
    with pytest.raises(KeyboardInterrupt):
        run_claim(replace(CLAIMS["scaling"], measure=interrupted), "smallest", tmp_path, silent)
    result = run_claim(CLAIMS["scaling"], "smallest", tmp_path, silent)
    assert 100.0 <= result.seconds < 200.0
    assert not list(tmp_path.glob(".scaling*"))


def test_the_book_shows_the_recorded_results_of_every_claim() -> None:
    page = PAGE.read_text(encoding="utf-8")
    # What is measured at full scale only, a claim on natural text, is in the book once somebody has measured it.
    shown = [marked["name"] for marked in MARKED.finditer(page)]
    assert [name for name in shown if "/" not in name] == [name for name in CLAIMS if not CLAIMS[name].needs_corpus]
    assert sorted(shown) == sorted(str(file.relative_to(RESULTS).with_suffix("")) for file in RESULTS.rglob("*.json"))
    assert page_text(page) == page
    for name in shown:
        file = RESULTS / f"{name}.json"
        result = ClaimResult.read(file)
        assert result.scale == ("full" if name.startswith("full/") else "small")
        assert len(result.panels[0].series[0].values[0]) >= 3
        assert CLAIMS[result.claim].judge(result.panels) == (result.verdict, result.finding)
        for picture, svg in charts(result).items():
            assert (file.parent / picture).read_text(encoding="utf-8") == svg


def test_the_book_lists_every_note_that_a_claim_quotes() -> None:
    listed = re.findall(r"^\| (\d) \| ", PAGE.read_text(encoding="utf-8").partition("## ")[0], flags=re.MULTILINE)
    quoted = {number for claim in CLAIMS.values() for number, _ in claim.notes}
    assert [int(number) for number in listed] == sorted(quoted)
    assert all(claim.notes for claim in CLAIMS.values())


def test_means_have_intervals_of_students_t() -> None:
    series = Series("a", [1.0], [[1.0, 2.0, 3.0]])
    assert series.means() == [2.0]
    assert series.half_widths() == [pytest.approx(4.30 / 3**0.5)]
    assert Series("a", [1.0], [[1.0]]).half_widths() == [0.0]


def test_a_verdict_follows_from_the_numbers(tmp_path: Path) -> None:
    panels = measure(Context("smallest", tmp_path, lambda _: None))
    verdict, finding = judge(panels)
    assert verdict == "holds in part"
    assert "At d_k = 256 the weights have" in finding
    both_even = [Panel("x", "y", [Series(name, [4.0, 256.0], [[0.9], [0.9]]) for name in (SCALED, UNSCALED)])] * 2
    assert judge(both_even)[0] == "does not hold here"


@pytest.mark.parametrize("scale", ["small", "full"])
def test_rivals_have_the_parameters_of_the_transformer_within_five_per_cent(scale: Scale) -> None:
    shape = SIZES[scale].shape()
    target = parameters(shape)
    for choice in (*bottleneck.MODELS.values(), *positions.MODELS.values()):
        assert abs(parameters(with_parameters({**shape, **choice}, target)) / target - 1) < 0.05
    width = translation.SIZES[scale].width
    base = {"d_model": width, "d_ff": 4 * width, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "norm": "pre"}
    for model in quality.MODELS:
        rival = {name.removeprefix("model."): value for name, value in quality.shape_of(model, width).items()}
        assert abs(parameters({**base, **rival}) / parameters(base) - 1) < 0.05


def test_a_damaged_result_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text(json.dumps({"claim": "scaling"}))
    with pytest.raises(FolderError, match=r"scaling.json is no result of heed claims: .* Remove it"):
        run_claim(CLAIMS["scaling"], "small", tmp_path, lambda _: None)


def test_the_command_lists_runs_and_refuses(tmp_path: Path) -> None:
    listed = heed("claims", "--list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in CLAIMS)
    measured = heed("claims", "scaling", "--scale", "smallest", "--out", f"{tmp_path}/out")
    assert measured.returncode == 0, measured.stderr
    assert "scaling: measuring …" in measured.stderr
    assert (tmp_path / "out/scaling-2.svg").exists()
    refused = heed("claims", "scalling")
    assert refused.returncode == 2
    assert "there is no claim 'scalling': did you mean 'scaling'?" in refused.stderr

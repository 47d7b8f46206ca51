import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heed.artifacts.folder import model_files
from heed.artifacts.manifest import verify
from heed.artifacts.writing import write_folder
from heed.cli.main import app
from heed.config import RunConfig
from heed.errors import HeedError
from heed.evaluation.metrics import score
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer
from tests.cli.command import ONE_THREAD
from tests.cli.command import heed as command
from tests.evaluation.examples import REFERENCES, damaged

GOOD, BAD = damaged(0.1, seed=1), damaged(0.5, seed=2)
SOURCES = [f"source {number}" for number in range(len(REFERENCES))]
KEYS = ["bleu", "bleu_lowercased", "chrf2", "ter", "exact_match", "token_error_rate"]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, lines in (("s", SOURCES), ("r", REFERENCES), ("good", GOOD), ("bad", BAD), ("short", GOOD[:3])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    (tmp_path / "empty").touch()
    (tmp_path / "few.s").write_text("a b\n\nb [bold]a\n")
    (tmp_path / "few.r").write_text("b a\nc\na b\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An untrained model: its translations do not matter here."""
    tokenizer = Tokenizer.train([], "bytes", 259)
    shape = {"d_model": 8, "heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1, "max_length": 64}
    run = RunConfig.model_validate(
        {"model": {"vocab_size": tokenizer.vocab_size, **shape}, "data": {"tokenizer": "bytes", "vocab_size": 259}}
    )
    files = model_files(Transformer(run.model).state_dict(), run, {}, (tokenizer, tokenizer), "# A model\n")
    write_folder(tmp_path / "model", files)
    return tmp_path / "model"


def evaluate(*arguments: str) -> str:
    """Run `heed evaluate` in this process and return its standard output; exceptions are raised."""
    run = CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return run.stdout


def test_a_file_is_scored_without_torch(texts: Path) -> None:
    code = (
        "import sys; from heed.cli.main import app; app(sys.argv[1:], standalone_mode=False);"
        "sys.exit('torch' in sys.modules)"
    )
    options = ["evaluate", "--hypothesis", "good", "--reference", "r", "--resamples", "100"]
    run = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, check=False, env=ONE_THREAD, cwd=texts
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    for metric_score in score(GOOD, REFERENCES, resamples=100):
        cells = f"{metric_score.value:.2f} {metric_score.mean:.2f} ± {metric_score.half_width:.2f}"
        assert any(line.startswith(metric_score.metric) and cells in line for line in _lines(run.stdout)), metric_score
        assert f"{metric_score.metric} {metric_score.short_signature}" in _lines(run.stdout)


@pytest.mark.usefixtures("texts")
def test_json_is_one_object_with_every_score() -> None:
    report = json.loads(
        evaluate("--hypothesis", "good", "--reference", "r", "--json", "--tokenize", "none", "--resamples", "99")
    )
    assert (report["hypothesis"], report["reference"], report["model"], report["sentences"]) == ("good", "r", None, 80)
    assert list(report["scores"]) == KEYS
    for metric_score, (key, numbers) in zip(score(GOOD, REFERENCES, "none", 99), report["scores"].items(), strict=True):
        expected = {
            "value": metric_score.value,
            "mean": metric_score.mean,
            "half_width": metric_score.half_width,
            "signature": metric_score.signature,
        }
        assert numbers == expected, key
    assert "tok:none" in report["scores"]["bleu"]["signature"]


@pytest.mark.usefixtures("texts")
def test_against_prints_both_systems_side_by_side() -> None:
    texts = ("--hypothesis", "good", "--reference", "r", "--source", "s", "--against", "bad")
    options = (*texts, "--show", "2", "--resamples", "200")
    lines = _lines(evaluate(*options))
    report = json.loads(evaluate(*options, "--json"))
    assert list(report["comparison"]) == KEYS
    for title, key in (("BLEU ↑", "bleu"), ("TER ↓", "ter"), ("token error rate ↓", "token_error_rate")):
        this, other = report["scores"][key], report["comparison"][key]["against"]
        numbers = (this["value"], this["half_width"], other["value"], other["half_width"])
        cells = " ".join(f"{number:.2f}" for number in numbers)
        difference, p_value = this["value"] - other["value"], report["comparison"][key]["p_value"]
        assert p_value < 0.01
        assert f"{title} {cells} {difference:+.2f} {p_value:.3f}" in lines
    different = sum(text != other_text for text, other_text in zip(GOOD, BAD, strict=True))
    assert report["different_sentences"] == different
    assert f"other bad, {different} sentences differ" in lines
    assert len(report["furthest_apart"]) == 2
    for disagreement in report["furthest_apart"]:
        index = disagreement["line"] - 1
        for title, name, text in (
            ("source", "source", SOURCES[index]),
            ("reference", "reference", REFERENCES[index]),
            ("this", "hypothesis", GOOD[index]),
            ("other", "against", BAD[index]),
        ):
            assert disagreement[name] == text
            assert " ".join(f"{title} {text}".split())[:60] in "\n".join(lines)
        assert (
            f"line {index + 1}: chrF2 {disagreement['chrf2']:.1f} (this), {disagreement['against_chrf2']:.1f} (other)"
            in lines
        )


def test_a_model_is_scored_and_its_scores_are_written_into_its_card(texts: Path, model: Path) -> None:
    arguments = ("evaluate", str(model), "--source", f"{texts}/few.s", "--reference", f"{texts}/few.r")
    run = command(*arguments, "--out", f"{texts}/out", "--json", "--resamples", "40")
    assert run.returncode == 0, run.stderr
    messages = run.stderr.splitlines()
    assert (messages[0], messages[-1]) == ("translating 3 sentences …", f"scores written to {model}/README.md")
    cut_off = json.loads(run.stdout)["truncated"]
    assert cut_off > 0
    assert messages[1].startswith(f"note: {cut_off} of 3 translations reached the length limit (source tokens + 50")
    report = json.loads(run.stdout)
    assert report["model"] == str(model)
    verify(model)
    card = (model / "README.md").read_text()
    assert card.startswith("# A model\n\n## Scores\n")
    assert card.count("| few.s + few.r (") == len(KEYS)
    assert f"| BLEU | {report['scores']['bleu']['value']:.2f} |" in card
    assert (texts / "out").read_text().count("\n") == 3
    second_report = json.loads(
        evaluate("--hypothesis", f"{texts}/out", "--reference", f"{texts}/few.r", "--json", "--resamples", "40")
    )
    assert second_report["scores"] == report["scores"]


def test_no_card_is_written_with_no_card_or_if_it_cannot_be_written(texts: Path, model: Path) -> None:
    options = [str(model), "--source", f"{texts}/few.s", "--reference", f"{texts}/few.r", "--resamples", "40"]
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    evaluate(*options, "--no-card")
    (model / ".manifest.json.writing").mkdir()  # a folder that cannot be written, even by root
    run = CliRunner().invoke(app, ["evaluate", *options])
    assert run.exit_code == 0
    assert f"note: the scores could not be written to {model}/README.md: [Errno 21] Is a directory" in run.stderr
    assert {file.name: file.read_bytes() for file in model.iterdir() if file.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hypothesis short", "short has 3 lines and r has 80: line n of one must belong to line n of the other"),
        ("--hypothesis good --source few.s", "few.s has 3 lines and r has 80"),
        ("--hypothesis good --against short", "short has 3 lines and r has 80"),
        ("model --source few.s", "few.s has 3 lines and r has 80"),
        ("", "expected a model folder, or --hypothesis with translations to score: found neither"),
        ("model --hypothesis good", "or --hypothesis with translations to score: found both model and good"),
        ("model", "model needs source text to translate: expected --source"),
        ("--hypothesis good --out out", "--out and --set need a model folder that translates"),
        ("model --source s --out s", "--out s would overwrite --source: choose another name"),
        ("model --source s --out no/out", "no/out: cannot be written: No such file or directory"),
        ("--hypothesis - --against -", "standard input (-) is given 2 times"),
        ("--hypothesis good --tokenize 13b", "sacreBLEU has no tokenizer '13b': did you mean '13a'?"),
        ("model --source s --set model.norm=pre", "--set model.…: only search and translate settings are allowed here"),
        ("model --source s --set search.baem=5", "unknown setting 'baem' in SearchConfig: did you mean 'beam'?"),
    ],
)
@pytest.mark.usefixtures("texts")
def test_invalid_evaluate_options_are_errors(arguments: str, message: str) -> None:
    with pytest.raises(HeedError) as error:
        evaluate(*arguments.split(), "--reference", "r")
    assert message in str(error.value)


def test_an_empty_reference_is_an_error(texts: Path) -> None:
    run = command("evaluate", "--hypothesis", f"{texts}/empty", "--reference", f"{texts}/empty")
    assert run.returncode == 2
    assert run.stderr == f"error: {texts}/empty is empty: expected reference translations\n"
    assert run.stdout == ""


def test_references_that_are_already_tokenised_get_a_note(texts: Path) -> None:
    (texts / "tokenised").write_text("a dog runs .\ntwo men sit .\n")
    arguments = ["evaluate", "--hypothesis", "tokenised", "--reference", "tokenised", "--resamples", "40"]
    note = "note: 2 of 2 references end in ' .', so the text seems to be tokenised already; papers compute BLEU"
    assert note in CliRunner().invoke(app, arguments).stderr
    assert CliRunner().invoke(app, [*arguments, "--tokenize", "none"]).stderr == ""


def _lines(printed: str) -> list[str]:
    """The lines of an output, with runs of spaces reduced to one."""
    assert max(map(len, printed.splitlines())) <= 80
    return [" ".join(line.split()) for line in printed.splitlines()]

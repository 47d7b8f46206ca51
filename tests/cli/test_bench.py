import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from heed import ModelConfig
from heed.benchmarking import limits
from heed.benchmarking.engine_race import EngineTiming, speedup
from heed.cli.main import app
from heed.errors import ConfigError
from heed.model.size import parameter_counts
from tests.cli.command import heed
from tests.interop.engine_models import TEXTS, folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("bench") / "model")


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure tiny matrices and buffers, and let bfloat16 fail."""
    monkeypatch.setattr(limits, "_MATRIX_SIZES", {"cpu": (16,)})
    monkeypatch.setattr(limits, "_BUFFER_FLOATS", {"cpu": 1000})
    monkeypatch.setattr(limits, "_BFLOAT16_CODE", "raise SystemExit('no bfloat16 here')")


def bench(*arguments: str, stdin: str = "") -> Result:
    """Run `heed bench` in this process, where torch is imported already."""
    result = CliRunner().invoke(app, ["bench", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def as_json(*arguments: str, stdin: str = "") -> dict[str, Any]:
    return dict(json.loads(bench(*arguments, "--json", stdin=stdin).stdout))


def test_engines_are_compared_on_the_given_model_and_text(model: Path) -> None:
    lines = "".join(f"{text}\n" for text in (*TEXTS, "", "left out"))
    options = ["--sentences", "6", "--beam", "1", "--rounds", "2", "--threads", "2", "--engine", "onnx", "--json"]
    process = heed("bench", "engines", str(model), "-", *options, stdin=lines)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert [report[name] for name in ("model", "sentences", "beam", "rounds")] == [str(model), 5, 1, 2]
    assert [(row["engine"], row["threads"]) for row in report["engines"]] == [("heed", 2), ("onnx", 2)]
    heeds, onnx = report["engines"]
    assert heeds["times_faster"] == heeds["times_faster_alone"] == heeds["same_output"] == onnx["same_output"] == 1.0
    assert min(onnx[name] for name in ("sentences_per_second", "seconds_alone", "times_faster")) > 0


def test_the_comparison_is_shown_as_a_table(model: Path) -> None:
    process = heed("bench", "engines", str(model), "-", "--engine", "heed", "--rounds", "1", stdin="A dog.\n")
    assert process.returncode == 0, process.stderr
    [heading, _, row] = process.stdout.splitlines()
    assert heading.split() == [
        "engine",
        "sentences/s",
        "×",
        "heed",
        "batch",
        "1,",
        "ms",
        "×",
        "heed",
        "same",
        "output",
    ]
    assert row.split()[0] == "heed"
    assert row.split()[-2:] == ["100.0", "%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", __file__, "--engine", "onx"], "error: unknown engine 'onx': did you mean 'onnx'"),
        (["MODEL", "-"], "error: - is empty: expected text to translate"),
        (["MODEL", "none.txt"], "error: none.txt: cannot be opened"),
        (["nowhere", __file__, "--engine", "heed"], "error: nowhere does not exist: expected a model folder"),
    ],
)
def test_invalid_engines_texts_and_models_of_bench_engines_are_errors(
    arguments: list[str], message: str, model: Path
) -> None:
    process = heed("bench", "engines", *(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_speedup_is_the_median_of_ratios_within_rounds() -> None:
    assert speedup([1.0, 2.0, 4.0], [2.0, 4.0, 40.0]) == 2.0
    assert EngineTiming("onnx", 1, ("a", "b"), (), ()).agreement(EngineTiming("heed", 1, ("a", "c"), (), ())) == 0.5


def test_every_bench_command_has_a_summary() -> None:
    questions = re.findall(r"^│ (\w+) +(\w+)", bench("--help").stdout, flags=re.MULTILINE)
    assert questions == [
        ("machine", "Measure"),
        ("train", "Measure"),
        ("translate", "Measure"),
        ("engines", "Compare"),
    ]


@pytest.mark.usefixtures("small_limits")
def test_bench_machine_reports_throughput_by_dtype_and_bandwidth() -> None:
    report = as_json("machine", "--device", "cpu")
    assert report["device"].startswith("CPU, threads: ")
    assert report["operations"].keys() == {"float32", "int8"}
    assert min(report["bytes_read"], *report["operations"].values()) > 0
    assert report["without"] == {"bfloat16": "fails: no bfloat16 here"}
    rows = [line.split("  ") for line in bench("machine", "--device", "cpu").stdout.splitlines()]
    assert [line[0].strip() for line in rows[2:]] == [
        "GEMM, float32",
        "GEMM, int8",
        "GEMM, bfloat16",
        "memory bandwidth",
    ]
    assert rows[4][-1].strip() == "fails: no bfloat16 here"
    assert rows[5][-1].strip().endswith(" GB/s")


SMALL = [word for setting in ("d_model=16", "heads=2", "d_ff=16", "norm=pre") for word in ("--set", f"model.{setting}")]


@pytest.mark.usefixtures("small_limits")
def test_bench_train_reports_speed_memory_and_share_of_the_limit() -> None:
    arguments = ["train", "--device", "cpu", "--vocabulary", "300", "--tokens", "150", "--seconds", "0", *SMALL]
    report = as_json(*arguments)
    assert [report[name] for name in ("preset", "vocabulary", "tokens_per_batch", "steps")] == ["tiny", 300, 150, 3]
    small = ModelConfig.preset("tiny", vocab_size=300, d_model=16, heads=2, d_ff=16, norm="pre")
    assert report["parameters"] == sum(part.total for part in parameter_counts(small))
    assert report["arithmetic"] == "float32"
    assert report["share"] == report["operations_per_second"] / report["limit"]
    assert 100 < report["tokens_per_step"] <= 150
    result = bench(*arguments)
    assert "preset tiny, vocabulary of 300 tokens, 150 target tokens per step" in result.stderr
    rows = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert list(rows) == [
        "device",
        "parameters",
        "target tokens/s",
        "time per step",
        "peak memory",
        "matmuls",
        "share of peak",
    ]
    assert rows["parameters"].strip() == f"{report['parameters']:,}"
    assert "GiB, the whole process" in rows["peak memory"]


@pytest.mark.usefixtures("small_limits")
def test_bench_translate_measures_each_batch_size_beam_and_length(model: Path) -> None:
    options = ["--batch", "1", "--batch", "3", "--beam", "2", "--sentences", "2", "--rounds", "1"]
    report = as_json("translate", str(model), *options)
    assert [(row["batch"], row["beam"], row["sentences"]) for row in report["by_batch"]] == [(1, 2, 3), (3, 2, 3)]
    assert [(row["batch"], row["source_tokens"]) for row in report["by_length"]] == [
        (batch, length) for batch in (1, 3) for length in (8.0, 16.0, 32.0)
    ]  # up to the model's max_tokens
    for row in report["by_batch"] + report["by_length"]:
        assert row["target_tokens"] == row["source_tokens"]
        assert row["tokens_per_second"] == pytest.approx(row["target_tokens"] / row["seconds_per_sentence"])
        assert row["share"] > 0


@pytest.mark.usefixtures("small_limits")
def test_bench_translate_measures_the_given_text(model: Path) -> None:
    lines = "".join(f"{text}\n" for text in (*TEXTS, "", "left out"))
    arguments = ["translate", str(model), "-", "--sentences", "6", "--batch", "2", "--beam", "1", "--rounds", "1"]
    report = as_json(*arguments, stdin=lines)
    (row,) = report["by_batch"]
    assert (report["file"], row["sentences"]) == ("-", 6)  # five lines, and one of them again
    assert row["target_tokens"] <= 10  # the model's max_length and EOS
    result = bench(*arguments, stdin=lines)
    assert "4 measurements, 1 round …" in result.stderr
    machine_line, headings, _, first, second, *_ = result.stdout.splitlines()
    assert machine_line.endswith(" GiB, the whole process")
    assert machine_line.startswith(f"{report['device']}; peak memory: ")
    assert headings.split("  ")[0].strip() == "batch"
    assert headings.split()[-2:] == ["of", "peak"]
    assert first.split()[:2] == ["2", "1"]
    assert second.startswith("by length; as many target ")
    assert f"backend {report['backend'].partition(':')[0]}: " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["machine", "--device", "tpu"], "error: Invalid value for '--device'"),
        (["train", "--preset", "tini"], "error: unknown preset 'tini': did you mean 'tiny'"),
        (
            ["train", "--set", "search.beam=1"],
            "error: --set search.…: only model and training settings are allowed here",
        ),
        (
            ["train", "--set", "model.d_modle=8"],
            "error: unknown setting 'd_modle' in ModelConfig: did you mean 'd_model'",
        ),
        (["train", "--vocabulary", "3"], "error: Invalid value for '--vocabulary'"),
        (["translate", "nowhere"], "error: nowhere does not exist: expected a model folder"),
        (["translate", "MODEL", "none.txt"], "error: none.txt: cannot be opened"),
        (["translate", "MODEL", "-"], "error: - is empty: expected text to translate"),
        (["translate", "MODEL", "--batch", "0"], "error: Invalid value for '--batch'"),
    ],
)
def test_invalid_bench_options_are_one_error_line(arguments: list[str], message: str, model: Path) -> None:
    process = heed("bench", *(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(message)
    assert len(process.stderr.splitlines()) == 1


def test_device_cuda_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for question in ("machine", "train"):
        with pytest.raises(ConfigError, match="--device cuda: torch finds no GPU"):
            CliRunner().invoke(app, ["bench", question, "--device", "cuda"], catch_exceptions=False)

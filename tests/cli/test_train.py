"""Training, interrupting and resuming through the real command."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.artifacts.tensors import read_tensors
from heed.artifacts.writing import write_folder
from heed.training.step_log import read_journal
from tests.cli.command import ONE_THREAD, heed
from tests.cli.training_runs import checkpoint_bytes, losses, train


@pytest.fixture(scope="module")
def uninterrupted(train_options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 12 steps."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run = train(train_options, out, 12)
    assert run.returncode == 0, run.stderr
    return out


@pytest.fixture
def run_copy(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of the uninterrupted run, which a test may change."""
    return Path(shutil.copytree(uninterrupted, tmp_path / "whole"))


def test_training_writes_a_complete_model_folder(run_copy: Path) -> None:
    verify(run_copy)
    folder = read_model_folder(run_copy)
    assert folder.model().config.d_model == 16
    assert folder.trained["step"] == 12
    assert {path.name for path in run_copy.iterdir()} == {
        "README.md",
        "checkpoints",
        "config.json",
        "journal.jsonl",
        "manifest.json",
        "model.safetensors",
        "run.json",
        "tensorboard",
        "tokenizer.json",
    }
    assert "100 pairs" in (run_copy / "README.md").read_text()
    steps = [line["step"] for line in read_journal(run_copy / "journal.jsonl") if "loss" in line]
    assert steps == list(range(1, 13))


@pytest.mark.parametrize("cut", [5, pytest.param(8, marks=pytest.mark.slow)])
def test_resume_equals_uninterrupted(train_options: list[str], run_copy: Path, tmp_path: Path, cut: int) -> None:
    out = tmp_path / "cut"
    assert train(train_options, out, cut).returncode == 0
    resumed = train(train_options, out, 12, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after step {cut}" in resumed.stderr
    assert checkpoint_bytes(out, 12) == checkpoint_bytes(run_copy, 12)
    # The shorter run validated once more, at its own last step.
    ours, theirs = losses(out), losses(run_copy)
    assert [entry for entry in ours if entry in theirs] == theirs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_exits_with_130(
    train_options: list[str], run_copy: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "interrupted"
    command = [
        sys.executable,
        "-m",
        "heed",
        "train",
        *train_options,
        "--out",
        str(out),
        "--set",
        "training.max_steps=100000",
    ]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ONE_THREAD)
    while not read_journal(out / "journal.jsonl"):
        time.sleep(0.05)
        assert run.poll() is None
    os.kill(run.pid, number)
    _, messages = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "checkpoint saved, continue with --resume" in messages
    assert "Traceback" not in messages
    stopped = int(messages.split("interrupted after step ")[1].split(":")[0])
    common = min(len(losses(out)), len(losses(run_copy)))
    assert common > 0
    assert losses(out)[:common] == losses(run_copy)[:common]
    assert json.loads((out / "checkpoints" / f"step-{stopped:08d}" / "progress.json").read_text())["step"] == stopped


def test_resume_with_other_settings_or_texts_is_refused(
    train_options: list[str], run_copy: Path, tmp_path: Path
) -> None:
    run = train(train_options, run_copy, 20, "--resume", "--set", "training.seed=2", "--set", "model.dropout=0.1")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-3:] == [
        "error: a resumed run keeps its settings and texts, but",
        "  model.dropout was 0.2 and is now 0.1",
        "  training.seed was 1 and is now 2",
    ]
    other = tmp_path / "other.src"
    other.write_text(Path(train_options[1]).read_text().replace("a", "b", 1))
    run = train(["--source", str(other), *train_options[2:]], run_copy, 20, "--resume")
    assert run.returncode == 2
    *_, change = run.stderr.splitlines()
    assert change.startswith("  the training text was ")
    assert change.endswith(f"/train.tgt (100 pairs) and is now {other} + {train_options[3]} (100 pairs)")
    text = Path(train_options[1])
    before = text.read_text()
    try:
        text.write_text(other.read_text())
        run = train(train_options, run_copy, 20, "--resume")
    finally:
        text.write_text(before)
    *_, change = run.stderr.splitlines()
    assert change == f"  the content of the training text {text} + {train_options[3]} (100 pairs) has changed"


def test_a_run_is_never_overwritten_by_mistake(train_options: list[str], run_copy: Path) -> None:
    run = train(train_options, run_copy, 12)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (
        f"error: {run_copy} already holds a run, up to step-00000012: resume it (--resume, or resume=True), or choose "
        "another output folder"
    )
    shutil.rmtree(run_copy / "checkpoints")
    run = train(train_options, run_copy, 12, "--resume")
    assert run.returncode == 2
    assert f"{run_copy} already holds a model, and no checkpoint to resume from: choose another output" in run.stderr


def test_resume_needs_only_out_and_names_differing_options(
    train_options: list[str], run_copy: Path, tmp_path: Path
) -> None:
    """Without a checkpoint --resume starts a run and prints a note, so that a script can always pass it."""
    out = tmp_path / "cut"
    first = train(train_options, out, 5, "--resume")
    assert first.returncode == 0, first.stderr
    assert f"there is no checkpoint in {out} yet: training starts from the beginning" in first.stderr
    other = ["--set", "training.max_steps=12", "--set", "training.patience=none"]
    resumed = heed("train", "--resume", "--out", str(out), *other)
    assert resumed.returncode == 0, resumed.stderr
    notes = resumed.stderr.splitlines()
    assert "training.max_steps was 5 and is now 12" in notes
    assert "training.patience was 10 and is now none" in notes
    assert "bit-exact" not in resumed.stderr
    assert checkpoint_bytes(out, 12) == checkpoint_bytes(run_copy, 12)
    last = heed("train", "--resume", "--out", str(out))  # the last settings are those recorded
    assert last.returncode == 0, last.stderr
    assert " was " not in last.stderr
    assert "done after step 12" in last.stderr


def test_a_folder_without_a_recorded_run_is_an_error(tmp_path: Path) -> None:
    run = heed("train", "--resume", "--out", str(tmp_path))
    assert run.returncode == 2
    assert run.stderr.startswith(
        f"error: there is no training text, and no run to resume ({tmp_path}/run.json: No such file or directory)"
    )
    (tmp_path / "run.json").write_text('{"training": 1}')
    run = heed("train", "--resume", "--out", str(tmp_path))
    assert run.returncode == 2
    assert "run.json is damaged" in run.stderr


def test_resume_with_other_threads_or_kernels_prints_a_note(train_options: list[str], run_copy: Path) -> None:
    newest = run_copy / "checkpoints" / "step-00000012"
    files = {file.name: file.read_bytes() for file in newest.iterdir() if file.name != "manifest.json"}
    progress = json.loads(files["progress.json"])
    assert progress["arithmetic"]["threads"] == "1"
    progress["arithmetic"] |= {"threads": "7", "kernels": "torch's own"}
    write_folder(newest, {**files, "progress.json": json.dumps(progress).encode()})
    run = train(train_options, run_copy, 12, "--resume")
    assert run.returncode == 0, run.stderr
    assert "threads: 7 before, 1 now, so the resumed run is not bit-exact (with OMP_NUM_THREADS=7 it is)" in run.stderr
    assert "kernels: torch's own before, " in run.stderr


def test_a_damaged_checkpoint_is_skipped_with_a_note(train_options: list[str], run_copy: Path) -> None:
    before = checkpoint_bytes(run_copy, 12)
    (run_copy / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"nonsense")
    run = train(train_options, run_copy, 12, "--resume")
    assert run.returncode == 0, run.stderr
    assert "step-00000012 is damaged: model.safetensors does not match manifest.json" in run.stderr
    assert checkpoint_bytes(run_copy, 12) == before


def test_a_damaged_model_of_a_run_is_written_again_from_its_checkpoints(run_copy: Path) -> None:
    before = (run_copy / "model.safetensors").read_bytes()
    (run_copy / "model.safetensors").write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    command = f"heed train --resume --out {run_copy}"
    refused = heed("translate", str(run_copy), "--text", "a")
    assert f"model.safetensors does not match manifest.json; {command} writes it again" in refused.stderr
    run = heed(*command.split()[1:])
    assert run.returncode == 0, run.stderr
    assert (run_copy / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("extra_options", "message"),
    [
        (["--set", "training.max_step=3"], "unknown setting 'max_step' in TrainingConfig: did you mean 'max_steps'?"),
        (["--set", "trainin.max_steps=3"], "unknown section 'trainin': did you mean 'training'?"),
        (["--set", "training.max_steps=none"], "max_steps = 'none': input should be a valid integer"),
        (
            ["--set", "model.positions=learned", "--set", "model.max_length=256"],
            "model.max_length = 256 learned positions are too few for data.max_tokens = 256 and the end of a sentence: "
            "set model.max_length to 257 or more, or data.max_tokens to 255 or less",
        ),
        (["--weight", "0.001"], "an epoch would have 0.1 pairs (weight times pairs: 0.001 x 100)"),
        (["--set", "training"], "--set training: expected section.name=value, such as training.max_steps=2000"),
        (["--set", "max_steps=3"], "--set max_steps=3: expected section.name=value, such as training.max_steps=3"),
        (["--set", "seed=3"], "expected section.name=value, such as training.seed=3 or search.seed=3"),
        (["--set", "model.vocab_size=30"], "model.vocab_size follows from the tokenizer: set data.vocab_size instead"),
        (["--set", "training.precision=bfloat16"], "training.precision = 'bfloat16' needs a GPU"),
        (["--set", "data.tokenizer=words"], "bpe_dropout = 0.3 needs tokenizer = 'bpe', found 'words'"),
        (["--preset", "huge"], "unknown preset 'huge': expected one of tiny, small, base, big"),
        (["--source", "x"], "found 2 source files and 1 target files for training"),
        (["--weight", "1", "--weight", "2"], "found 2 weights for 1 corpora"),
        (["--config", "missing.toml"], "missing.toml: No such file or directory"),
        (["--valid-pairs", "missing.tsv"], "missing.tsv"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_train_options_are_errors(
    train_options: list[str], tmp_path: Path, extra_options: list[str], message: str
) -> None:
    run = train(train_options, tmp_path / "out", 12, *extra_options)
    assert run.returncode == 2
    line = run.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert "Traceback" not in run.stderr


def test_init_from_takes_weights_and_vocabulary_of_another_model(run_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("xyz\tzyx\nabc\tcba\n" * 10)  # x, y and z are new to the first model
    options = ["--pairs", str(tmp_path / "new.tsv"), "--cache", str(tmp_path / "cache"), "--init-from", str(run_copy)]
    run = train(options, tmp_path / "on", 1, "--set", "training.learning_rate=1e-9")
    assert run.returncode == 0, run.stderr
    before, after = (read_tensors(folder / "model.safetensors") for folder in (run_copy, tmp_path / "on"))
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-8)
    assert (tmp_path / "on" / "tokenizer.json").read_bytes() == (run_copy / "tokenizer.json").read_bytes()
    run = train([*options, "--set", "model.d_ff=24"], tmp_path / "other", 1)
    assert "the settings require (24,)" in run.stderr or "the settings require (16, 24)" in run.stderr


def test_text_may_come_from_standard_input(train_options: list[str], run_copy: Path, tmp_path: Path) -> None:
    """Text from standard input gives the same run as the same text from a file."""
    out = tmp_path / "piped"
    piped = ["--source", "-", *train_options[2:], "--out", str(out), "--set", "training.max_steps=12"]
    run = heed("train", *piped, stdin=Path(train_options[1]).read_text())
    assert run.returncode == 0, run.stderr
    assert checkpoint_bytes(out, 12)["model.safetensors"] == checkpoint_bytes(run_copy, 12)["model.safetensors"]
    run = train([*train_options, "--source", "-", "--target", "-"], tmp_path / "twice", 12)
    assert "standard input (-) is given 2 times" in run.stderr


def test_missing_training_or_validation_text_is_an_error(train_options: list[str], tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n\n")
    blank = ["--pairs", f"{tmp_path}/blank.tsv"]
    (tmp_path / "blank.tsv").write_text("\t\n\t\n")
    run = train([*train_options[8:], *blank], tmp_path / "a", 12)
    assert run.stderr.splitlines()[-1].startswith("error: no usable pair is left: ")
    run = train([*train_options[:4], *train_options[8:], "--valid-pairs", f"{tmp_path}/blank.tsv"], tmp_path / "b", 12)
    assert run.stderr.splitlines()[-1].endswith("kept 0 of 2: 2 empty, 0 longer than 256 tokens")
    (tmp_path / "file").write_text("")
    run = train(train_options, tmp_path / "file" / "run", 12)
    message = f"error: {tmp_path}/file/run cannot be created: {tmp_path}/file is a file: expected a folder to write the"
    assert run.stderr.splitlines()[-1] == f"{message} run to"


@pytest.mark.parametrize(
    ("names", "extra_options", "codes", "message"),
    [
        ("train.en train.de", [], ("en", "de"), "languages: en → de, from the file names"),
        ("train.en train.de", ["--target-language", "de-AT"], ("en", "de-AT"), "en → de-AT, from the file names"),
        ("train.en train.de", ["--set", "data.source_language=fr", "--target-language=it"], ("fr", "it"), "as set"),
        (
            "a.src a.tgt",
            [],
            ("", ""),
            "languages: unknown, since no file name contains them; heed serve will call them",
        ),
    ],
)
def test_languages_come_from_file_names_or_options_and_are_printed(
    train_options: list[str], tmp_path: Path, names: str, extra_options: list[str], codes: tuple[str, str], message: str
) -> None:
    files = [
        shutil.copy(train_options[number], tmp_path / name) for number, name in zip((1, 3), names.split(), strict=True)
    ]
    text_options = ["--source", str(files[0]), "--target", str(files[1]), *train_options[8:]]
    run = train(text_options, tmp_path / "out", 1, *extra_options)
    assert run.returncode == 0, run.stderr
    assert message in run.stderr
    data = read_model_folder(tmp_path / "out").run.data
    assert (data.source_language, data.target_language) == codes


def test_languages_unknown_at_first_can_be_set_on_resume(train_options: list[str], run_copy: Path) -> None:
    run = train(train_options, run_copy, 13, "--resume", "--source-language", "en", "--target-language", "de")
    assert run.returncode == 0, run.stderr
    assert read_model_folder(run_copy / "checkpoints" / "step-00000013").run.data.source_language == "en"
    run = train(train_options, run_copy, 14, "--resume", "--source-language", "english")
    assert run.stderr == (
        "error: source language 'english': expected a language code such as en, hsb, pt-BR or zh-Hans\n"
    )


def test_without_validation_text_some_training_pairs_are_held_out_or_a_note_is_printed(
    train_options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "many.tsv").write_text("".join(f"{number}\t{str(number)[::-1]}\n" for number in range(1000, 2200)))
    many = ["--pairs", f"{tmp_path}/many.tsv", *train_options[8:]]
    run = train(many, tmp_path / "out", 4)
    assert run.returncode == 0, run.stderr
    assert "validation: no text was given, so 60 of 1,200 are held out (data.hold_out=0 holds out none)" in run.stderr
    assert "step 4  validation loss " in run.stderr
    validated = next(line for line in read_journal(tmp_path / "out" / "journal.jsonl") if "validation_loss" in line)
    assert validated["outputs"] == 60
    cut_off = (
        f"  {validated['truncated']} of 60 translations are truncated at the length limit: raise search.max_length"
    )
    assert (cut_off in run.stderr) == (validated["truncated"] > 0)
    assert validated["truncated"] > 0  # a model of four steps
    assert "many.tsv: kept 1,140 of 1,140" in run.stderr
    assert [text["pairs"] for text in read_model_folder(tmp_path / "out").trained["texts"]["validation"]] == [60]
    going_on = heed("train", "--resume", "--out", f"{tmp_path}/out", "--set", "training.max_steps=8")
    assert going_on.returncode == 0, going_on.stderr
    assert checkpoint_bytes(tmp_path / "out", 8) == checkpoint_bytes(whole_of(many, tmp_path / "whole", 8), 8)
    for extra_options, reason in (([], "100 are too few to hold some out"), (["--set", "data.hold_out=0"], "as set")):
        run = train([*train_options[:4], *train_options[8:], *extra_options], tmp_path / f"few{len(extra_options)}", 1)
        assert (
            f"validation: none ({reason}): no early stopping, and the last checkpoint becomes the model" in run.stderr
        )
    run = train(train_options, tmp_path / "both", 1, "--set", "data.hold_out=5")
    assert run.stderr.endswith("error: data.hold_out = 5 is for runs without validation text, and some is given\n")


def whole_of(train_options: list[str], out: Path, steps: int) -> Path:
    run = train(train_options, out, steps)
    assert run.returncode == 0, run.stderr
    return out


def test_flags_override_the_toml_file(train_options: list[str], tmp_path: Path) -> None:
    settings = tmp_path / "run.toml"
    settings.write_text("[training]\nmax_steps = 99\nseed = 8\n[model]\nnorm = 'pre'\n")
    run = train(train_options, tmp_path / "out", 2, "--config", str(settings))
    assert run.returncode == 0, run.stderr
    config = read_model_folder(tmp_path / "out").run
    assert (config.training.max_steps, config.training.seed, config.model.norm) == (2, 8, "pre")

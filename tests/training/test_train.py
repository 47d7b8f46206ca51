"""`heed.train`: training from Python, with the results of the command line."""

import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

import heed
from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.artifacts.tensors import read_tensors
from heed.decoding.engine import max_output_lengths
from heed.decoding.forced_decoding import token_log_probs
from heed.text.lexicon import Lexicon
from heed.text.normalization import TextStyle
from heed.training.step_log import StepReport, Validation, read_journal
from tests.cli.command import heed as command
from tests.text.word_sentences import sentences

SETTINGS: dict[str, Any] = {
    "model.d_model": 16,
    "model.heads": 2,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.d_ff": 16,
    "model.dropout": 0.2,
    "data.vocab_size": 300,
    "training.tokens_per_batch": 80,
    "training.accumulate": 2,
    "training.validate_every": 3,
    "training.checkpoint_every": 2,
    "training.warmup_steps": 5,
    "training.ema_decay": 0.9,
    "training.max_steps": 6,
}


class Recorder(heed.Listener):
    """Records every call."""

    def __init__(self) -> None:
        self.work_done: set[str] = set()
        self.steps: list[StepReport] = []
        self.validations: list[tuple[int, Validation, bool]] = []
        self.notes: list[str] = []

    def work(self, doing: str, done: int, total: int | None) -> None:  # noqa: ARG002 - the listener's signature
        self.work_done.add(doing)

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def validation(self, step: int, result: Validation, best: bool) -> None:
        self.validations.append((step, result, best))

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The arguments for files of random words and the same words reversed."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdef", k=draw.randint(2, 6))) for _ in range(90)]
    for name, lines in {"train": words[:70], "valid": words[70:]}.items():
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    sides = {"source": folder / "train.en", "target": str(folder / "train.de")}  # a Path or a str
    return {**sides, "valid_source": [folder / "valid.en"], "valid_target": [f"{folder}/valid.de"], "preset": "tiny"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def uninterrupted(texts: dict[str, Any], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Recorder]:
    """An uninterrupted run of six steps, and what its listener recorded."""
    recorder = Recorder()
    out = tmp_path_factory.mktemp("whole") / "run"
    return heed.train(**texts, out=out, settings=SETTINGS, cache=cache, listener=recorder), recorder


def weights(folder: Path, step: int) -> dict[str, bytes]:
    """Weights and moments after a step, byte for byte."""
    checkpoint = folder / "checkpoints" / f"step-{step:08d}"
    return {name: (checkpoint / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def test_train_returns_a_folder_that_translates_the_best_validation_and_the_history(
    uninterrupted: tuple[Any, Recorder],
) -> None:
    run, _ = uninterrupted
    verify(run.folder)
    assert isinstance(heed.load(run.folder)("abc"), str)
    assert run.history == read_journal(run.folder / "journal.jsonl")
    assert [line["step"] for line in run.history if "loss" in line] == [1, 2, 3, 4, 5, 6]
    best = min((line for line in run.history if "validation_loss" in line), key=lambda line: line["validation_loss"])
    assert (run.best.step, run.best.loss, run.best.score) == (best["step"], best["validation_loss"], best["bleu"])
    assert run.best.metric == "bleu"


def test_a_listener_is_called_for_text_steps_validations_and_notes(uninterrupted: tuple[Any, Recorder]) -> None:
    run, recorder = uninterrupted
    assert recorder.work_done == {"reading", "training the tokenizer", "tokenising"}
    assert [report.step for report in recorder.steps] == [1, 2, 3, 4, 5, 6]
    assert {report.max_steps for report in recorder.steps} == {6}
    assert [report.loss for report in recorder.steps] == [line["loss"] for line in run.history if "loss" in line]
    assert [step for step, _, _ in recorder.validations] == [3, 6]
    assert recorder.validations[0][2]  # the first is the best so far
    assert "settings: preset tiny" in recorder.notes
    assert recorder.notes[-1] == f"done after step 6: the model of step {run.best.step} is in {run.folder}"


def test_without_a_listener_nothing_is_printed(texts: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run = heed.train(**texts, out=tmp_path / "run", settings={**SETTINGS, "training.max_steps": 1}, cache=cache)
    assert (out.getvalue(), err.getvalue()) == ("", "")
    assert len(run.history) == 2  # a step and the validation at its end


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    texts: dict[str, Any], cache: Path, uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    out, recorder = tmp_path / "resumed", Recorder()
    heed.train(**texts, out=out, settings={**SETTINGS, "training.max_steps": 3}, cache=cache)
    torch.manual_seed(99)  # must have no effect
    run = heed.train(out=out, settings={"training": {"max_steps": 6}}, resume=True, listener=recorder)
    assert "resuming after step 3" in recorder.notes
    assert weights(out, 6) == weights(uninterrupted[0].folder, 6)
    assert [line["step"] for line in run.history if "loss" in line] == [1, 2, 3, 4, 5, 6]


def test_the_command_line_trains_the_same_weights(
    texts: dict[str, Any], cache: Path, uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    files = [word for name in ("source", "target") for word in (f"--{name}", str(texts[name]))]
    files += [word for name in ("source", "target") for word in (f"--valid-{name}", str(texts[f"valid_{name}"][0]))]
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    options = ["--preset", "tiny", "--cache", str(cache), "--out", str(tmp_path / "run")]
    process = command("train", *files, *options, *sets)
    assert process.returncode == 0, process.stderr
    assert weights(tmp_path / "run", 6) == weights(uninterrupted[0].folder, 6)
    ours, theirs = (
        read_tensors(folder / "model.safetensors") for folder in (tmp_path / "run", uninterrupted[0].folder)
    )
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_training_in_another_thread_gives_the_same_weights_and_leaves_signal_handlers_alone(
    texts: dict[str, Any], cache: Path, uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    before, runs = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        runs.append(heed.train(**texts, out=tmp_path / "run", settings=SETTINGS, cache=cache))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(runs) == 1
    assert weights(tmp_path / "run", 6) == weights(uninterrupted[0].folder, 6)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_saves_a_checkpoint_to_resume_from_and_raises(
    texts: dict[str, Any], cache: Path, uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    class Interrupting(heed.Listener):
        def step(self, report: StepReport) -> None:
            if report.step == 4:
                signal.raise_signal(signal.SIGINT)

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        heed.train(**texts, out=out, settings=SETTINGS, cache=cache, listener=Interrupting())
    assert [line["step"] for line in read_journal(out / "journal.jsonl") if "loss" in line] == [1, 2, 3, 4]
    heed.train(out=out, resume=True)
    assert weights(out, 6) == weights(uninterrupted[0].folder, 6)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"settings": {"training.max_step": 3}}, heed.ConfigError, "unknown setting 'max_step' in TrainingConfig"),
        ({"settings": {"training.max_steps": "many"}}, heed.ConfigError, "max_steps = 'many'"),
        ({"settings": {"max_steps": 3}}, heed.ConfigError, "'max_steps' = 3, expected section.name"),
        ({"settings": {"trainin.max_steps": 3}}, heed.ConfigError, "unknown section 'trainin'"),
        ({"preset": "huge"}, heed.ConfigError, "unknown preset 'huge'"),
        ({"config": "missing.toml"}, heed.ConfigError, "missing.toml: No such file"),
        (
            {"settings": {"model.norm": "rms"}, "source": "missing.en"},
            heed.ConfigError,
            "norm = 'rms': input should be",
        ),
        ({"settings": {"model.heads": 0.5}, "source": "missing.en"}, heed.ConfigError, "heads = 0.5: input should be"),
        (
            {"settings": {"training.best_by": "accuracy"}, "source": "missing.en"},
            heed.ConfigError,
            "training.best_by = 'accuracy': task = 'translate' has loss and bleu",
        ),
        ({"settings": {"translate.splt": "line"}}, heed.ConfigError, "unknown setting 'splt' in TranslateConfig: did"),
        ({"out": ""}, heed.ConfigError, "out = '', expected the path of a folder"),
        ({"source": "missing.en"}, heed.DataError, "missing.en"),
        ({"source": ["a", "b"]}, heed.DataError, "found 2 source files and 1 target files for training"),
        ({"valid_target": []}, heed.DataError, "found 1 source files and 0 target files for validation"),
        ({"weight": [1.0, 2.0, 3.0]}, heed.DataError, "found 3 weights for 1 corpora"),
        ({"task": "masked"}, heed.DataError, "task = 'masked' trains on text files"),
        ({"source_language": "english"}, heed.ConfigError, "source language 'english': expected a language code"),
    ],
)
def test_bad_input_raises_with_the_offending_value(
    texts: dict[str, Any], tmp_path: Path, more: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        heed.train(**{**texts, "out": tmp_path / "run", "cache": tmp_path / "cache", **more})


def test_missing_training_text_and_an_existing_run_are_refused(
    texts: dict[str, Any], uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    with pytest.raises(heed.DataError, match="there is no training text"):
        heed.train(out=tmp_path)
    with pytest.raises(heed.FolderError, match=r"already holds a run, up to step-00000006: resume it \(--resume, or"):
        heed.train(**texts, out=uninterrupted[0].folder)


def test_a_warning_reaches_the_logger_and_the_listener(
    texts: dict[str, Any], cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, recorder = tmp_path / "run", Recorder()
    settings = {**SETTINGS, "training.max_steps": 2, "training.checkpoint_every": 1}
    heed.train(**texts, out=out, settings=settings, cache=cache)
    (out / "checkpoints" / "step-00000002" / "model.safetensors").write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, logger="heed"):
        heed.train(out=out, resume=True, listener=recorder)
    (warning,) = caplog.messages
    assert "step-00000002 is damaged: model.safetensors does not match manifest.json" in warning
    assert warning in recorder.notes


def test_outputs_many_times_as_long_as_their_sources_are_within_the_fitted_limit(cache: Path, tmp_path: Path) -> None:
    rows = [
        f"{word} {count}\t{' '.join([word] * count)}\n" for word in ("red", "blue", "green") for count in range(1, 90)
    ]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    recorder = Recorder()
    settings = {**SETTINGS, "data.tokenizer": "words", "training.max_steps": 1}
    run = heed.train(
        pairs=tmp_path / "pairs.tsv", out=tmp_path / "run", cache=cache, settings=settings, listener=recorder
    )
    translator = heed.load(run.folder)
    (limit,) = max_output_lengths(
        [translator.model.config], translator.tokenizers[0].encode(["red 89"]), translator.search
    )
    assert limit >= 1.2 * 89
    (note,) = [note for note in recorder.notes if note.startswith("output length: ")]
    assert note.endswith("; the longest training target has 89")


def test_a_model_folder_has_the_style_of_its_training_sources(
    texts: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    for normalize in (True, False):
        settings = {**SETTINGS, "training.max_steps": 1, "translate.normalize": normalize}
        translator = heed.load(
            heed.train(**texts, out=tmp_path / f"{normalize}", cache=cache, settings=settings).folder
        )
        assert translator.normalizer.style == TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=0.0)
        (translation,) = translator.translate(["ABC  ABC"])
        assert translation.normalized == normalize


def test_a_model_folder_has_the_words_of_its_training_sources_where_spelling_is_corrected(
    texts: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    sources = Path(texts["source"]).read_text().splitlines()
    for correct in (True, False):
        settings = {**SETTINGS, "training.max_steps": 1, "translate.correct_spelling": correct}
        run = heed.train(**texts, out=tmp_path / f"{correct}", cache=cache, settings=settings)
        assert read_model_folder(run.folder).lexicon == (Lexicon.from_texts(sources) if correct else None)


def test_repeating_the_command_of_an_older_version_chooses_nothing_anew(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in sentences(300)))
    arguments: dict[str, Any] = {"pairs": corpus, "cache": cache, "preset": "tiny", "out": tmp_path / "run"}
    with monkeypatch.context() as older:  # a version that had no such choices
        older.setattr("heed.training.run_inputs.choose_settings", lambda *_: iter(()))
        began = heed.train(**arguments, settings=SETTINGS)
    went_on = heed.train(**arguments, settings={**SETTINGS, "training.max_steps": 8}, resume=True)
    before, after = (read_model_folder(run.folder).run for run in (began, went_on))
    assert before.model.positions == "sinusoidal"
    assert (after.model, after.data) == (before.model, before.data)
    assert went_on.history[-1]["step"] == 8


def test_word_pairs_are_further_training_pairs_and_change_nothing_else(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, runs, recorder = tmp_path / "pairs.tsv", {}, Recorder()
    corpus.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in sentences(300)))
    for word_pairs in (True, False):
        settings = {**SETTINGS, "data.word_pairs": word_pairs, "data.hold_out": 40, "translate.correct_spelling": True}
        out = tmp_path / f"{word_pairs}"
        runs[word_pairs] = heed.train(pairs=corpus, out=out, settings=settings, cache=cache, listener=recorder)
    file = tmp_path / "True/word-pairs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"source": "dog.", "target": "Hund."} in rows
    assert {"source": "Red.", "target": "Rot."} in rows
    assert f"{file}: kept {len(rows)} of {len(rows)}: 0 empty, 0 longer than 256 tokens" in recorder.notes
    assert not (tmp_path / "False/word-pairs.jsonl").exists()
    with_words, without = (read_model_folder(runs[word_pairs].folder) for word_pairs in (True, False))
    assert with_words.weights_sum() != without.weights_sum()
    assert with_words.lexicon == without.lexicon
    for name in ("texts", "trigrams", "lengths", "style"):
        assert with_words.trained[name] == without.trained[name]
    monkeypatch.setattr("heed.training.run_texts.word_pairs", lambda _: [("other", "pairs")])  # of another version
    resumed = heed.train(out=tmp_path / "True", resume=True, settings={"training.max_steps": 8}, cache=cache)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    assert resumed.history[-1]["step"] == 8


def test_a_corpus_of_a_few_pairs_in_many_copies_is_not_divided_and_its_run_resumes(tmp_path: Path, cache: Path) -> None:
    recorder, pairs = Recorder(), tmp_path / "pairs.tsv"
    pairs.write_text("a dog\tein Hund\na cat\teine Katze\n" * 600)
    heed.train(pairs=pairs, out=tmp_path / "run", settings=SETTINGS, cache=cache, listener=recorder)
    (note,) = (note for note in recorder.notes if note.startswith("validation"))
    assert note.startswith("validation: none (every pair is empty, repeated often, or the only one of its label)")
    resumed = heed.train(out=tmp_path / "run", settings={"training.max_steps": 8}, resume=True)
    assert resumed.history[-1]["step"] == 8


def test_many_pairs_over_the_token_limit_and_words_split_into_letters_are_warned_of(
    texts: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    settings = {
        **SETTINGS,
        "data.tokenizer": "bpe",
        "data.vocab_size": 259,
        "data.max_tokens": 5,
        "training.max_steps": 1,
    }
    recorder = Recorder()
    heed.train(**texts, out=tmp_path / "run", cache=cache, settings=settings, listener=recorder)
    left_out, letters = (
        [note for note in recorder.notes if end in note]
        for end in ("Raise data.max_tokens", "splits words into letters")
    )
    assert len(letters) == 1
    too_long = [note for note in recorder.notes if note.startswith("validation: ") and "longer than 5 tokens" in note]
    assert len(too_long) == 1
    (note,) = left_out
    assert " of 70 pairs (" in note
    assert "more than data.max_tokens = 5 tokens and are left out" in note


def test_single_words_do_not_hide_that_most_or_all_sentences_are_too_long(tmp_path: Path, cache: Path) -> None:
    corpus, recorder = tmp_path / "pairs.tsv", Recorder()
    long = "".join(f"{pair.source * 4}\t{pair.target * 4}\n" for pair in sentences(300))
    settings = {**SETTINGS, "data.word_pairs": True, "data.max_tokens": 8, "training.max_steps": 1}
    corpus.write_text(f"{long}a\tb\nc\td\n")
    heed.train(pairs=corpus, out=tmp_path / "most", settings=settings, cache=cache, listener=recorder)
    (note,) = (note for note in recorder.notes if "data.max_tokens" in note)
    assert note.startswith("most of the training text is too long: ")
    assert " of 302 pairs (" in note  # not of the single words, too
    corpus.write_text(long)
    with pytest.raises(heed.DataError, match=r"kept 0 of 300: .* than 8 tokens: raise data\.max_tokens, or split"):
        heed.train(pairs=corpus, out=tmp_path / "all", settings=settings, cache=cache)
    run = command("prepare", "--pairs", str(corpus), "--cache", str(cache), "--set", "data.max_tokens=8")
    assert run.returncode == 2
    assert "error: no usable pair is left: " in run.stderr


def test_labels_that_occur_once_are_why_nothing_is_held_out(tmp_path: Path, cache: Path) -> None:
    corpus, recorder = tmp_path / "labels.tsv", Recorder()
    corpus.write_text("".join(f"label {number}\ta text\n" for number in range(1000)))
    with pytest.raises(heed.DataError, match="1,000 different labels in 1,000 texts"):
        heed.train(task="classify", pairs=corpus, out=tmp_path / "run", cache=cache, listener=recorder)
    assert (
        "validation: none (every pair is empty, repeated often, or the only one of its label): no early stopping"
        in (" ".join(recorder.notes))
    )


def test_a_gpu_out_of_memory_is_an_error_that_names_the_batch_size(
    texts: dict[str, Any], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has ...")

    monkeypatch.setattr("heed.training.train.run_training", run_out)
    message = r"Tried to allocate 20 GiB\): .*tokens_per_batch=40 \(now 80\) .* training.accumulate=4 \(now 2\)"
    with pytest.raises(heed.TrainingError, match=message):
        heed.train(**texts, out=tmp_path / "run", cache=cache, settings=SETTINGS)


def test_a_smaller_vocabulary_than_the_one_set_is_reported(texts: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "data.tokenizer": "bpe", "data.vocab_size": 90_000, "training.max_steps": 1}
    recorder = Recorder()
    heed.train(**texts, out=tmp_path / "run", cache=cache, settings=settings, listener=recorder)
    (note,) = (note for note in recorder.notes if note.startswith("data.vocab_size = 90,000, but the text"))
    assert note.endswith(f" for only {read_model_folder(tmp_path / 'run').run.model.vocab_size:,} tokens")


def test_an_output_folder_that_cannot_be_used_is_reported_before_any_text_is_read(
    texts: dict[str, Any], uninterrupted: tuple[Any, Recorder], tmp_path: Path
) -> None:
    unread = {**texts, "source": "missing.en"}
    (tmp_path / "file").write_text("")
    for out, message in {
        tmp_path / "file": "file is a file: expected a folder to write the run to",
        tmp_path / "file/run": "file/run cannot be created: .*file is a file: expected a folder",
        uninterrupted[0].folder: "already holds a run, up to step-00000006: resume it",
    }.items():
        with pytest.raises(heed.FolderError, match=message):
            heed.train(**unread, out=out)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(heed.FolderError, match="locked/run cannot be written to: no permission to write to"):
            heed.train(**unread, out=tmp_path / "locked/run")


def test_a_resumed_run_keeps_the_settings_chosen_when_it_began(
    texts: dict[str, Any], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "training.tokens_per_batch"}
    arguments: dict[str, Any] = {**texts, "out": tmp_path / "run", "cache": cache}
    heed.train(**arguments, settings={**settings, "training.max_steps": 2})
    monkeypatch.setattr("heed.text.corpus_defaults._RATE", 1.0)  # as if another version of heed chose otherwise
    monkeypatch.setattr("heed.text.corpus_defaults._PREDICTABLE_RATE", 1.0)
    heed.train(**arguments, settings={**settings, "training.max_steps": 3}, resume=True)
    rates = {line["rate"] for line in read_journal(tmp_path / "run" / "journal.jsonl") if "rate" in line}
    assert max(rates) < 0.1


def test_language_models_and_classifiers_train_from_python(texts: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\nseed = 3\nmax_steps = 9\n")
    settings = {**SETTINGS, "training.max_steps": 2, "training.accumulate": 1}
    run = heed.train(
        text=texts["source"],
        task="language-model",
        out=str(tmp_path / "lm"),
        config=tmp_path / "run.toml",
        settings=settings,
        cache=str(cache),
    )
    assert run.best is None  # too few texts to hold some out
    config = read_model_folder(run.folder).run
    assert (config.model.kind, config.training.seed, config.training.max_steps) == ("decoder", 3, 2)
    pairs = tmp_path / "labels.tsv"
    pairs.write_text("x\tabc\ny\tdef\n" * 20)
    classified = heed.train(
        pairs=pairs, valid_pairs=[pairs], task="classify", out=tmp_path / "c", settings=settings, cache=cache
    )
    assert classified.best is not None
    assert classified.best.metric == "accuracy"


def test_one_process_imports_nothing_for_sharded_weights() -> None:
    code = "import sys, heed; heed.train; assert 'torch' in sys.modules and 'torch.distributed.fsdp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_heed_and_its_listener_needs_no_torch() -> None:
    code = "import sys, heed; dir(heed); heed.Listener; heed.TrainingConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spelling_and_a_closed_vocabulary_get_a_tokenizer_each(tmp_path: Path, cache: Path) -> None:
    draw = random.Random(4)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(3, 7))) for _ in range(400)]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{word}\t{' '.join(letter.upper() for letter in word)}\n" for word in words))
    settings = {name: value for name, value in SETTINGS.items() if name not in ("data.vocab_size", "model.dropout")}
    recorder, out = Recorder(), tmp_path / "run"
    run = heed.train(pairs=pairs, out=out, settings=settings, cache=cache, listener=recorder)
    folder = read_model_folder(run.folder)
    assert folder.run.data.tokenizer_types == ("characters", "bpe")
    assert any("data.source_tokenizer = characters: 9" in note for note in recorder.notes)
    assert "tokens (characters and bpe) |" in (run.folder / "README.md").read_text()
    source, target = heed.load(run.folder).tokenizers
    assert source.tokens(*source.encode(["bad"])) == ["b", "a", "d"]
    assert target.tokens(*target.encode(["B A D"])) == [" B", " A", " D"]
    resumed = heed.train(out=out, resume=True, settings={"training.max_steps": 8}, cache=cache)
    assert read_model_folder(resumed.folder).run.data.tokenizer_types == ("characters", "bpe")
    tuned = heed.train(
        pairs=pairs, out=tmp_path / "tuned", init_from=run.folder, settings={"training.max_steps": 1}, cache=cache
    )
    assert read_model_folder(tuned.folder).run.data.tokenizer_types == ("characters", "bpe")


RIVALS: list[dict[str, Any]] = [
    {"model.mixer": "lstm"},
    {"model.mixer": "gru", "model.source_context": "vector"},
    {"model.mixer": "convolution", "training.r_drop": 1.0},
]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival["model.mixer"])
def test_rivals_are_trained_resumed_and_used_like_a_transformer(
    texts: dict[str, Any], cache: Path, tmp_path: Path, rival: dict[str, Any]
) -> None:
    settings = {**SETTINGS, **rival}
    whole = heed.train(**texts, out=tmp_path / "whole", settings=settings, cache=cache)
    heed.train(**texts, out=tmp_path / "cut", settings={**settings, "training.max_steps": 4}, cache=cache)
    resumed = heed.train(out=tmp_path / "cut", settings={"training.max_steps": 6}, resume=True, cache=cache)
    weights = [read_tensors(run.folder / "model.safetensors") for run in (whole, resumed)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    translator = heed.load(whole.folder)
    assert translator.backend.choice.backend == "reference"
    (best,) = translator.translate(["abcd"], beam=3, nbest=2)
    assert len(best.alternatives) == 1
    assert bool(best.alignment) == (best.ids != () and "model.source_context" not in rival)
    (log_probs,) = token_log_probs(translator.models, translator.tokenizers[0].encode(["abcd"]), [best.ids])
    assert sum(log_probs) == pytest.approx(best.log_prob, abs=1e-3)
    with pytest.raises(heed.InputError, match=f"models with mixer = '{rival['model.mixer']}'"):
        translator.look("abcd")

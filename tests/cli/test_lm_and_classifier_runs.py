"""Decoder-only and encoder-only models, through the real command."""

import json
import math
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from heed.artifacts.folder import read_model_folder
from heed.artifacts.tensors import read_tensors
from heed.training.step_log import read_journal
from tests.cli.command import heed

SMALL = ["model.d_model=16", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1", "model.d_ff=32"]
SMALL += ["data.vocab_size=300", "training.tokens_per_batch=200", "training.checkpoint_every=5"]
SMALL += ["training.validate_every=10", "training.warmup_steps=10", "training.accumulate=2"]
LABELS = {"up": "abc", "down": "xyz"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of two kinds of letters, with and without labels."""
    folder = tmp_path_factory.mktemp("halves")
    draw = random.Random(3)
    for name, count in (("train", 200), ("valid", 40)):
        rows = [
            (label, "".join(draw.choices(LABELS[label] + " ", k=8)) + ".")
            for label in draw.choices(list(LABELS), k=count)
        ]
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for _, text in rows))
        (folder / f"{name}.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows))
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"label": label, "text": text, "text2": "q"}) + "\n" for label, text in rows)
        )
    return folder


def train(folder: Path, out: str, steps: int, *options: str) -> subprocess.CompletedProcess[str]:
    chosen = [word for setting in (*SMALL, f"training.max_steps={steps}") for word in ("--set", setting)]
    return heed(
        "train", *options, *chosen, "--preset", "tiny", "--out", f"{folder}/{out}", "--cache", f"{folder}/cache"
    )


def texts(folder: Path) -> list[str]:
    return ["--text", f"{folder}/train.txt", "--valid-text", f"{folder}/valid.txt"]


def pairs(folder: Path, ending: str = "tsv") -> list[str]:
    return ["--pairs", f"{folder}/train.{ending}", "--valid-pairs", f"{folder}/valid.{ending}"]


@pytest.fixture(scope="module")
def language_model(folder: Path) -> Path:
    run = train(folder, "lm", 60, "--task", "language-model", *texts(folder))
    assert run.returncode == 0, run.stderr
    assert "bits per byte" in run.stderr
    return folder / "lm"


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Path:
    run = train(folder, "c", 60, "--task", "classify", *pairs(folder))
    assert run.returncode == 0, run.stderr
    assert "accuracy" in run.stderr
    return folder / "c"


@pytest.fixture(scope="module")
def masked(folder: Path) -> Path:
    run = train(folder, "m", 20, "--task", "masked", *texts(folder))
    assert run.returncode == 0, run.stderr
    return folder / "m"


def test_a_language_model_learns_writes_and_is_scored(language_model: Path, folder: Path) -> None:
    tried = [entry for entry in read_journal(language_model / "journal.jsonl") if "validation_loss" in entry]
    assert tried[-1]["bits_per_byte"] < tried[0]["bits_per_byte"] < 8
    run = heed("evaluate", str(language_model), "--text", f"{folder}/valid.txt", "--json", "--resamples", "50")
    scores = json.loads(run.stdout)["scores"]
    best = min(entry["validation_loss"] for entry in tried)
    assert scores["perplexity"]["value"] == pytest.approx(math.exp(best), rel=1e-3)
    assert scores["bits_per_byte"]["value"] == pytest.approx(
        min(validation["bits_per_byte"] for validation in tried), rel=1e-3
    )
    assert "| valid.txt " in (language_model / "README.md").read_text()
    assert "| task | language-model |" in (language_model / "README.md").read_text()


def test_generate_prints_one_text_per_line_and_the_same_for_the_same_seed(language_model: Path) -> None:
    greedy = heed("generate", str(language_model), "--prompt", "ab", "--prompt", "x", "--scores", "--max-length", "20")
    rows = [line.split("\t") for line in greedy.stdout.splitlines()]
    assert [text[:1] for _, text in rows] == ["a", "x"]
    assert all(float(score) < 0 for score, _ in rows)
    samples = [
        heed("generate", str(language_model), "--count", "3", "--seed", seed, "--max-length", "12").stdout
        for seed in ("5", "5", "6")
    ]
    assert len(samples[0].splitlines()) == 3
    assert samples[0] == samples[1] != samples[2]
    streamed = heed("generate", str(language_model), "--stream", "--seed", "5", "--max-length", "12")
    assert streamed.stdout.rstrip("\n") == heed(
        "generate", str(language_model), "--seed", "5", "--max-length", "12"
    ).stdout.rstrip("\n")


def test_a_classifier_is_scored_on_chosen_columns_and_rows_without_a_label_are_counted(
    classifier: Path, folder: Path, tmp_path: Path
) -> None:
    rows = (folder / "valid.tsv").read_text().splitlines()
    reversed_rows = [",".join(reversed(row.split("\t"))) for row in rows]
    (tmp_path / "valid.csv").write_text("\n".join(["text,label", *reversed_rows, "no label,"]) + "\n")
    options = ["--json", "--resamples", "50", "--no-card"]
    plain = heed("evaluate", str(classifier), "--pairs", f"{folder}/valid.tsv", *options)
    chosen = heed("evaluate", str(classifier), "--pairs", f"{tmp_path}/valid.csv", "--columns", "label,text", *options)
    assert json.loads(chosen.stdout)["scores"] == json.loads(plain.stdout)["scores"]
    assert chosen.stderr == f"note: 1 of {len(rows) + 1:,} rows have no text or no label and are not scored\n"


def test_a_classifier_learns_labels_and_is_scored(classifier: Path, folder: Path) -> None:
    run = heed("classify", str(classifier), stdin="abcabc ab.\n\nzzyx xy.\n")
    rows = [line.split("\t") for line in run.stdout.splitlines()]
    assert [row[0] for row in rows] == ["up", "", "down"]
    assert all(0.5 < float(row[1]) <= 1 for row in (rows[0], rows[2]))
    everything = heed("classify", str(classifier), "--text", "abcabc ab.", "--json")
    result = json.loads(everything.stdout)
    assert result["label"] == "up"
    assert sum(result["probabilities"].values()) == pytest.approx(1)
    run = heed("evaluate", str(classifier), "--pairs", f"{folder}/valid.tsv", "--json", "--resamples", "50")
    report = json.loads(run.stdout)
    assert report["labels"] == ["down", "up"]
    assert np.array(report["confusion"]).sum() == report["texts"] == 40
    assert report["scores"]["accuracy"]["value"] == pytest.approx(100 * np.trace(report["confusion"]) / 40)
    assert report["scores"]["accuracy"]["value"] > 90
    table = heed("evaluate", str(classifier), "--pairs", f"{folder}/valid.tsv", "--resamples", "50").stdout
    assert "macro-F1 ↑" in table
    assert "rows: true label, columns: predicted label" in table


def test_a_label_that_training_lacks_is_named_with_its_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "v.tsv").write_text("up\tabc.\nsideways\txyz.\n")
    files = ["--pairs", f"{folder}/train.tsv", "--valid-pairs", f"{tmp_path}/v.tsv"]
    run = train(folder, "unknown", 1, "--task", "classify", *files)
    assert run.returncode == 2
    assert (
        f"error: {tmp_path}/v.tsv:2: the label 'sideways' is not one of the model's labels: expected one of down, up"
        in run.stderr
    )


def test_two_texts_may_share_a_label(folder: Path) -> None:
    run = train(folder, "two", 5, "--task", "classify", *pairs(folder, "jsonl"))
    assert run.returncode == 0, run.stderr
    assert heed("classify", f"{folder}/two", "--text", "abc\tq").returncode == 0


def test_a_classifier_can_be_initialised_from_a_masked_language_model(masked: Path, folder: Path) -> None:
    run = train(folder, "from-m", 1, "--task", "classify", *pairs(folder), "--init-from", str(masked), "--set",
                "training.learning_rate=1e-12")  # fmt: skip
    assert run.returncode == 0, run.stderr
    before, after = (read_tensors(run_folder / "model.safetensors") for run_folder in (masked, folder / "from-m"))
    assert after.keys() - before.keys() == {"classes.output.weight", "classes.output.bias"}
    assert all(torch.allclose(after[name], weight, atol=1e-6) for name, weight in before.items())


def test_init_from_a_model_of_another_kind_is_refused(language_model: Path, folder: Path) -> None:
    run = train(folder, "no", 1, "--task", "classify", *pairs(folder), "--init-from", str(language_model))
    assert run.returncode == 2
    assert "is of kind 'decoder', and task = 'classify' needs one of kind 'encoder'" in run.stderr


@pytest.mark.parametrize("task", ["language-model", "masked", "classify"])
def test_resume_equals_uninterrupted_for_every_task(task: str, folder: Path) -> None:
    text_options = pairs(folder) if task == "classify" else texts(folder)
    options = ("--task", task, *text_options, "--set", "model.dropout=0.2")
    assert train(folder, f"whole-{task}", 9, *options).returncode == 0
    assert train(folder, f"parts-{task}", 4, *options).returncode == 0
    resumed = train(folder, f"parts-{task}", 9, *options, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    uninterrupted, resumed_weights = (
        read_tensors(folder / f"{name}-{task}" / "model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(weight, resumed_weights[name]) for name, weight in uninterrupted.items())
    losses = [
        [entry["loss"] for entry in read_journal(folder / f"{name}-{task}" / "journal.jsonl") if "loss" in entry]
        for name in ("whole", "parts")
    ]
    assert losses[0] == losses[1]


def test_long_documents_are_split_and_none_skipped(folder: Path, tmp_path: Path) -> None:
    document = "\n".join("abc xyz" for _ in range(100))
    (tmp_path / "d.txt").write_text(f"\n\n{document}\n\nshort one\n")
    settings = ("data.documents=true", "data.max_tokens=50", "data.tokenizer=bytes")
    options = [word for setting in settings for word in ("--set", setting)]
    run = train(folder, "d", 2, "--task", "language-model", "--text", f"{tmp_path}/d.txt", *options)
    assert run.returncode == 0, run.stderr
    pieces = -(-len(document) // 50) + 1
    assert f"{tmp_path}/d.txt: kept {pieces} of {pieces}: 0 empty, 0 longer than 50 tokens" in run.stderr


@pytest.mark.parametrize("kind", ["language_model", "classifier", "masked"])
def test_embed_works_with_every_kind_of_model(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model = str(request.getfixturevalue(kind))
    run = heed("embed", model, "-o", f"{tmp_path}/v.npy", stdin="abc\nxyz x\n")
    assert run.returncode == 0, run.stderr
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (2, 16)
    lines = heed("embed", model, "--text", "abc", "--text", "xyz x").stdout.splitlines()
    np.testing.assert_allclose([json.loads(line)["vector"] for line in lines], vectors, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "{c}"], "is not a language model: it was trained with task = 'classify'"),
        (["generate", "{lm}", "--prompt", "a", "b.txt"], "expected --prompt or files of prompts, not both"),
        (["generate", "{lm}", "--stream", "--count", "2"], "--stream prints one text"),
        (["generate", "{lm}", "--top-p", "2"], "top_p = 2.0: input should be less than or equal to 1"),
        (["classify", "{lm}", "--text", "a"], "is not a classifier: it was trained with task = 'language-model'"),
        (["classify", "{c}", "--text", "a\t"], "text 1 is empty, or has an empty part"),
        (["embed", "{c}", "--text", "a", "-o", "v.csv"], "-o v.csv: expected a name ending in .npy or .jsonl"),
        (["evaluate", "{lm}", "--text", "{v}.txt", "--pairs", "{v}.tsv"], "--pairs cannot be combined with --text"),
        (["evaluate", "{lm}", "--text", "{v}.txt", "--source", "a"], "--source cannot be combined with --text"),
        (["evaluate", "--text", "{v}.txt"], "expected a model folder to evaluate"),
        (["evaluate", "{c}"], "no reference: expected --reference, --text or --pairs"),
        (["train", "--task", "nonsense", "--text", "a", "--out", "o"], "task = 'nonsense': input should be"),
        (["train", "--task", "masked", "--pairs", "{v}.tsv", "--out", "{o}"], "trains on text files, one text per"),
        (["train", "--text", "{v}.txt", "--out", "{o}"], "task = 'translate' trains on source and target files"),
        (["train", "--task", "classify", "--pairs", "{v}.tsv", "--out", "{o}", "--set", "training.best_by=bleu"],
         "training.best_by = 'bleu': task = 'classify' has loss and accuracy"),
        (["train", "--text", "a", "--out", "o", "--set", "model.kind=decoder"],
         "model.kind follows from the task: set data.task"),
    ],
)  # fmt: skip
def test_invalid_options_of_generate_classify_embed_and_evaluate_are_one_error_line(
    arguments: list[str], message: str, language_model: Path, classifier: Path, folder: Path, tmp_path: Path
) -> None:
    names = {"lm": language_model, "c": classifier, "v": folder / "valid", "o": tmp_path / "o"}
    run = heed(*(argument.format(**names) for argument in arguments))
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_a_model_folder_records_its_task(classifier: Path, language_model: Path) -> None:
    assert read_model_folder(classifier).run.data.labels == ("down", "up")
    assert read_model_folder(classifier).run.model.labels == 2
    assert read_model_folder(language_model).run.model.kind == "decoder"

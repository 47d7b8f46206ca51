"""Models that do not translate, through the real commands: each verb works or names the verb to use instead."""

import json
from pathlib import Path

import pytest

import heed as library
from heed.microworld.corpus import corpus
from tests.cli.command import heed

SMALL = "--set model.d_model=16 --set model.heads=2 --set model.d_ff=16 --set data.vocab_size=300"
BRIEF = f"{SMALL} --preset tiny --set training.max_steps=4 --set training.checkpoint_every=2".split()
TASKS = ("language-model", "masked", "classify")
FOR = {
    "language-model": "it is for heed generate, evaluate, look and serve; in Python, heed.Generator.open",
    "masked": "it is for heed embed, look, serve and train --init-from; in Python, heed.inference.classifier.embed",
    "classify": "it is for heed classify, embed, evaluate, look and serve; in Python, heed.Classifier.open",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps for each task, in a folder of the task's name, and the texts."""
    folder = tmp_path_factory.mktemp("halves")
    sentences = [example.source for example in corpus("train", 200)]
    (folder / "text").write_text("".join(f"{text}\n" for text in sentences))
    rows = [f"{'long' if len(text) > 45 else 'short'}\t{text}\n" for text in sentences]
    (folder / "labels.tsv").write_text("".join(rows))
    for task in TASKS:
        text = ["--pairs", f"{folder}/labels.tsv"] if task == "classify" else ["--text", f"{folder}/text"]
        process = heed(
            "train", "--task", task, *text, "--out", f"{folder}/{task}", "--cache", f"{folder}/cache", *BRIEF
        )
        assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_translation_verbs_refuse_other_models_and_name_the_right_verb(runs: Path, task: str) -> None:
    kind = "a decoder" if task == "language-model" else "an encoder"
    problem = f"error: {runs / task} is {kind}-only model, trained with task = {task!r}"
    expected = f"{problem}, and does not translate: {FOR[task]}\n"
    model, text = str(runs / task), str(runs / "text")
    for command in (
        ["translate", model, "--text", "a"],
        ["score", model, "--source", text, "--target", text],
        ["ablate", model, "--source", text, "--reference", text],
        ["pronouns", model],
        *(["export", model, "--to", to, "--out", f"{runs}/out"] for to in ("marian", "ctranslate2")),
    ):
        process = heed(*command)
        assert (process.returncode, process.stderr) == (2, expected), command
    with pytest.raises(library.InputError) as error:
        library.load(runs / task)
    assert f"error: {error.value}\n" == expected


@pytest.mark.parametrize("task", TASKS)
def test_encoder_only_and_decoder_only_models_are_exported_as_one_onnx_graph(runs: Path, task: str) -> None:
    pytest.importorskip("onnx")
    out = runs / f"{task}-onnx"
    process = heed("export", str(runs / task), "--to", "onnx", "--out", str(out))
    assert process.returncode == 0, process.stderr
    graphs = sorted(file.name for file in out.glob("*.onnx"))
    assert graphs == ["decoder.onnx" if task == "language-model" else "encoder.onnx"]
    translation = heed("translate", str(out), "--text", "a")
    assert translation.returncode == 2
    assert f"{out} is a model of kind" in translation.stderr


def test_bench_engines_needs_an_encoder_decoder_model(runs: Path) -> None:
    race = ["bench", "engines", str(runs / "masked"), str(runs / "text"), "--engine", "heed-int8", "--rounds", "1"]
    process = heed(*race, "--sentences", "1")
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].startswith(f"error: {runs / 'masked'} is an encoder-only model")


@pytest.mark.parametrize("task", TASKS)
def test_checkpoints_of_any_task_are_averaged(runs: Path, task: str) -> None:
    out = runs / f"mean-of-{task}"
    process = heed("average", str(runs / task), "--last", "2", "--out", str(out))
    assert process.returncode == 0, process.stderr
    assert json.loads((out / "config.json").read_text())["data"]["task"] == task
    assert heed("look", str(out), "The cat sees a bird.", "-o", str(out / "look.json")).returncode == 0


@pytest.mark.parametrize(
    ("task", "summary"),
    [
        ("language-model", "Next token at each position"),
        ("masked", "Prediction at each position if its token is masked"),
        ("classify", "Probability of each label"),
    ],
)
def test_look_shows_the_predictions_of_encoder_only_and_decoder_only_models(
    runs: Path, task: str, summary: str
) -> None:
    process = heed("look", str(runs / task), "The cat sees a bird.")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"The cat sees a bird.\n\n{summary}\n")
    assert "The 6 most peaked of 8 attention heads" in process.stdout
    for ending in ("html", "svg", "json"):
        out = runs / f"{task}.{ending}"
        assert heed("look", str(runs / task), "The cat.", "-o", str(out)).returncode == 0
        assert out.stat().st_size > 1000
    with_target = heed("look", str(runs / task), "The cat.", "--target", "b")
    assert (with_target.returncode, with_target.stderr.count("\n")) == (2, 1)
    assert "takes one text, found a target too: 'b'" in with_target.stderr


def test_a_classifiers_labels_are_printed_with_their_share(runs: Path) -> None:
    output = heed("look", str(runs / "classify"), "The cat\tand the dog").stdout
    shares = {
        line.split()[0]: line.split()[1] for line in output.splitlines() if line.strip().startswith(("long", "short"))
    }
    assert shares.keys() == {"long", "short"}
    assert sum(float(share.removesuffix("%")) for share in shares.values()) == pytest.approx(100, abs=0.11)


@pytest.mark.parametrize("task", TASKS)
def test_heads_works_with_encoder_only_and_decoder_only_models(runs: Path, task: str) -> None:
    process = heed("heads", str(runs / task), "--source", str(runs / "text"), "--json")
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    side = "decoder" if task == "language-model" else "encoder"
    assert [head["path"] for head in report["heads"]] == [
        f"{side}.{layer}.self" for layer in (1, 2, 3, 4) for _ in "ab"
    ]
    assert (report["target"], report["sentences"]) == (None, 200)

"""`heed import`, and what can be done with an imported model, through the real command."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch

from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.microworld.corpus import corpus
from tests.cli.command import heed

pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
from tests.interop.marian_models import TINY, Recipe, make

SENTENCE = "The old cat sees a red bird."


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MarianMT folder."""
    return make(
        tmp_path_factory.mktemp("import") / "opus-mt-en-fr", Recipe({**TINY, "init_std": 0.2}, pairs=200, pieces=120)
    )


@pytest.fixture(scope="module")
def model(marian_folder: Path) -> Path:
    process = heed("import", "--from", "marian", str(marian_folder), "--out", str(marian_folder.parent / "model"))
    assert process.returncode == 0, process.stderr
    assert process.stderr == f"{marian_folder} imported to {marian_folder.parent / 'model'}\n"
    assert process.stdout == ""
    return marian_folder.parent / "model"


def test_an_imported_folder_is_complete_and_records_its_origin(model: Path) -> None:
    verify(model)
    folder = read_model_folder(model)
    assert folder.trained == {"imported": "From the Hugging Face MarianMT folder `opus-mt-en-fr`."}
    assert (folder.run.data.source_language, folder.run.data.target_language) == ("en", "fr")
    assert "From the Hugging Face MarianMT folder `opus-mt-en-fr`." in (model / "README.md").read_text()


def test_translate_score_and_look_work_on_an_imported_model(model: Path, tmp_path: Path) -> None:
    process = heed("translate", str(model), "--set", "search.max_length=10", stdin=f"{SENTENCE}\n\nnaïve ﬁne\n")
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("\n") == 3
    for name, text in (("s", SENTENCE), ("t", "Le vieux chat voit un oiseau rouge.")):
        (tmp_path / name).write_text(text + "\n")
    process = heed("score", str(model), "--source", f"{tmp_path}/s", "--target", f"{tmp_path}/t")
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 0
    process = heed("look", str(model), "犬 sees a ﬁne bird", "--target", "Un ﬁn oiseau", "-o", f"{tmp_path}/look.json")
    assert process.returncode == 0, process.stderr
    trace = json.loads((tmp_path / "look.json").read_text())
    assert "".join(trace["target"]["tokens"]) == "⟨s⟩ ⟨unk⟩n fin oiseau"  # the small vocabulary has no U


def test_an_imported_model_can_be_trained_further_and_then_exported(model: Path, tmp_path: Path) -> None:
    lines = [f"{pair.source}\t{pair.target}\n" for pair in corpus("train", 40)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    options = ["training.max_steps=2", "training.checkpoint_every=2", "training.tokens_per_batch=200"]
    sets = [word for option in options for word in ("--set", option)]
    paths = ["--pairs", f"{tmp_path}/pairs.tsv", "--out", f"{tmp_path}/run", "--cache", f"{tmp_path}/cache"]
    process = heed("train", "--init-from", str(model), *paths, *sets)
    assert process.returncode == 0, process.stderr
    before, after = read_model_folder(model), read_model_folder(tmp_path / "run")
    assert after.run.model == before.run.model
    assert [tokenizer.to_json() for tokenizer in after.tokenizers] == [
        tokenizer.to_json() for tokenizer in before.tokenizers
    ]
    changed = [
        not torch.equal(weight, new_weight)
        for weight, new_weight in zip(before.model().parameters(), after.model().parameters(), strict=True)
    ]
    assert all(changed)
    process = heed("export", f"{tmp_path}/run", "--to", "marian", "--out", f"{tmp_path}/marian")
    assert process.returncode == 0, process.stderr
    assert {"source.spm", "target.spm", "vocab.json", "config.json"} <= set(os.listdir(tmp_path / "marian"))


def test_an_imported_model_can_be_served(model: Path) -> None:
    from tests.serving.running import serving  # noqa: PLC0415 - needs the packages of the server

    with serving(model) as server:
        answer = server.post("/translate", q=SENTENCE, source="en", target="fr")
        assert answer.status_code == 200, answer.text
        assert isinstance(answer.json()["translatedText"], str)


def test_invalid_import_options_are_errors(marian_folder: Path, tmp_path: Path) -> None:
    process = heed("import", "--from", "marion", str(marian_folder), "--out", f"{tmp_path}/x")
    assert process.returncode == 2
    assert process.stderr == "error: --from marion is not a known format: did you mean 'marian'?\n"
    process = heed("import", "--from", "fairseq", str(marian_folder), "--out", f"{tmp_path}/x")
    assert process.returncode == 2
    assert process.stderr.endswith("a fairseq checkpoint is a pickle: name it with --weights; found none\n")
    process = heed("import", "--from", "marian", str(marian_folder), "--out", f"{tmp_path}/x", "--languages", "english")
    assert (process.returncode, process.stderr) == (
        2,
        "error: --languages english: expected two language codes, such as en-de\n",
    )
    with tempfile.TemporaryDirectory() as empty:
        process = heed("import", "--from", "marian", empty, "--out", f"{tmp_path}/x")
        assert (process.returncode, process.stderr) == (
            2,
            f"error: {empty} has no config.json: expected the folder of a model in the --from format\n",
        )

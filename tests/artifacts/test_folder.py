"""Which model folders are refused before a model is built, and the errors for paths that are not model folders."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import heed
from heed.artifacts.folder import is_quantized, read_model_folder
from heed.artifacts.manifest import MANIFEST
from heed.artifacts.shapes import weight_count, weight_shapes
from heed.artifacts.writing import write_folder
from heed.errors import FolderError, HeedError
from heed.text.tokenizer import Tokenizer
from heed.untrusted import parse_json
from tests.damage import Damage, replace_by
from tests.interop.engine_models import folder
from tests.model.examples import COMBINATIONS
from tests.serving.folders import make_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("folders") / "model")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def rewrite(path: Path, **changed: bytes | None) -> None:
    """Change files (`config.json` as config_json), with a manifest that fits."""
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.name != MANIFEST}
    for name, content in changed.items():
        stem, _, ending = name.rpartition("_")
        files.pop(f"{stem}.{ending}", None)
        if content is not None:
            files[f"{stem}.{ending}"] = content
    shutil.rmtree(path)
    write_folder(path, files)


def set_config(path: Path, section: str, **values: object) -> None:
    config = json.loads((path / "config.json").read_text())
    config[section] |= values
    rewrite(path, config_json=json.dumps(config).encode())


def refusal(path: Path) -> str:
    with pytest.raises(FolderError) as caught:
        read_model_folder(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Only what the manifest lists belongs to a folder.


@pytest.mark.parametrize("name", ["source_tokenizer.json", "model.int8.safetensors", "heed.json", "progress.json"])
def test_a_file_that_the_manifest_does_not_list_changes_nothing(copy: Path, name: str) -> None:
    expected = heed.load(copy)(["A dog runs."])
    left_over = Tokenizer.train(["zebra " * 9], "bpe", 280).to_json()
    (copy / name).write_text(left_over)
    assert heed.load(copy)(["A dog runs."]) == expected
    assert not is_quantized(copy)
    assert heed.load(copy)(["A dog runs."]) == expected


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_manifest_that_does_not_list_a_required_file_is_refused(copy: Path, name: str) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    del manifest["sha256"][name]
    (copy / MANIFEST).write_text(json.dumps(manifest))
    assert refusal(copy) == f"{copy} is damaged: manifest.json does not list {name}"


def test_a_separate_source_vocabulary_requires_a_listed_source_tokenizer(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", separate=True)
    rewrite(path, source_tokenizer_json=None)
    assert refusal(path) == f"{path} is damaged: manifest.json does not list source_tokenizer.json"


# Settings, tokenizers and weights are compared before anything is built.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000 is more than"),
        ({"vocab_size": 10**7}, "the model has a vocabulary of 10,000,000 tokens, but its tokenizer has 273"),
        ({"vocab_size": 280}, "the model has a vocabulary of 280 tokens, but its tokenizer has 273"),
        ({"encoder_layers": 10**6}, "has 89 tensors, but the settings require 16,000,057 weights"),
        ({"encoder_layers": 1}, "weight 'encoder.layers.1."),
        ({"d_ff": 10**8}, "feed_forward.narrow.weight' has shape (16, 24), but the settings require (16, 100000000)"),
        ({"positions": "learned", "max_length": 10**8}, "weight 'decoder.positions.table.weight' has shape none, but"),
        ({"norm": "post"}, "weight 'decoder.norm.bias' has shape (16,), but the settings require none"),
        ({"heads": 10**30}, "is not divisible by heads"),
        ({"pad_id": 7}, "pad_id, bos_id and eos_id are (7, 1, 2), but its tokenizer has (0, 1, 2)"),
        ({"d_model": "8"}, "config.json: "),
        ({"width": 8}, "unknown setting 'width' in ModelConfig"),
    ],
    ids=str,
)
def test_settings_that_contradict_the_tokenizer_or_weights_are_refused_before_a_model_is_built(
    copy: Path, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("a model is built")

    monkeypatch.setattr("heed.model.transformer.Transformer.__init__", build)
    set_config(copy, "model", **settings)
    assert message in refusal(copy)


@pytest.mark.parametrize(
    "settings",
    [{"beam": 10**6}, {"max_length": 10**9}, {"min_length": 10**9}, {"length_penalty": 10**30}, {"seed": 10**30}],
    ids=str,
)
def test_search_settings_of_a_folder_are_bounded(copy: Path, settings: dict[str, int]) -> None:
    set_config(copy, "search", **settings)
    ((name, value),) = settings.items()
    assert f"{name} = {value}: input should be less than" in refusal(copy)


def test_a_folder_with_a_training_setting_that_no_longer_exists_opens(copy: Path) -> None:
    set_config(copy, "training", cutoff=0.05)
    assert heed.load(copy)("abc") is not None


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        (None, "trained = None"),
        ([], r"trained = []"),
        ({"trigrams": [1]}, "trained.trigrams = [1]"),
        ({"trigrams": {"source": 3}}, "trained.trigrams.source = 3"),
        ({"texts": "x"}, "trained.texts = 'x'"),
        ({"lengths": {"common": "9"}}, "trained.lengths.common = '9'"),
    ],
    ids=str,
)
def test_training_metadata_of_the_wrong_type_is_refused_and_unknown_keys_are_kept(
    copy: Path, trained: Any, message: str
) -> None:
    config = json.loads((copy / "config.json").read_text())
    rewrite(copy, config_json=json.dumps({**config, "trained": trained}).encode())
    assert f"config.json: {message}: " in refusal(copy)
    rewrite(copy, config_json=json.dumps({**config, "trained": {"anything": ["else"]}}).encode())
    assert read_model_folder(copy).trained == {"anything": ["else"]}


@pytest.mark.parametrize("config", COMBINATIONS, ids=str)
def test_weight_shapes_computed_from_the_config_are_those_of_the_model(config: heed.ModelConfig) -> None:
    deeper = config.model_copy(update={"encoder_layers": 3, "decoder_layers": 2})
    expected = {name: tuple(weight.shape) for name, weight in heed.Transformer(deeper).state_dict().items()}
    assert weight_shapes(deeper) == expected
    assert weight_count(deeper) == len(expected)


def test_opening_a_model_leaves_the_random_state_of_torch_as_it_was(model: Path) -> None:
    before = torch.get_rng_state()
    heed.load(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_opening_a_model_and_translating_does_not_import_dynamo(model: Path) -> None:
    code = "import sys, heed; heed.load(sys.argv[1])('A dog runs.'); sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, model], check=False).returncode == 0


def test_float16_weights_are_read_as_float32_and_integer_weights_are_refused(copy: Path) -> None:
    weights = load((copy / "model.safetensors").read_bytes())
    rewrite(copy, model_safetensors=save({name: weight.half() for name, weight in weights.items()}))
    weights_read = read_model_folder(copy).model().state_dict()
    assert all(torch.equal(weights_read[name], weight.half().float()) for name, weight in weights.items())
    rewrite(copy, model_safetensors=save({name: weight.int() for name, weight in weights.items()}))
    assert "has dtype I32, expected F64 or F32 or F16 or BF16" in refusal(copy)


def test_weights_that_are_not_finite_are_refused(copy: Path) -> None:
    weights = load((copy / "model.safetensors").read_bytes())
    weights["encoder.norm.bias"][2] = torch.inf
    rewrite(copy, model_safetensors=save(weights))
    with pytest.raises(FolderError, match=r"encoder.norm.bias is not finite"):
        read_model_folder(copy).model()


def test_loading_leaves_the_random_state_and_the_default_dtype_alone(model: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    heed.load(model)
    assert torch.equal(torch.rand(3), expected)
    torch.set_default_dtype(torch.float64)
    try:
        dtypes = {weight.dtype for weight in read_model_folder(model).model().parameters()}
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes == {torch.float32}


def header(**entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its header has 0 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "its header has 9,223,372,036,854,775,808 bytes"),
        (header(a=1), "its tensor 'a' is described as 1"),
        (header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}), "its tensor 'a' has 9 bytes"),
        (header(a={"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}) + bytes(12), "overlap or leave a gap"),
        (header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}), "8 bytes in its header, but 0 in the file"),
    ],
    ids=str,
)
def test_a_safetensors_file_with_an_invalid_header_is_refused(copy: Path, content: bytes, message: str) -> None:
    rewrite(copy, model_safetensors=content)
    assert f"{copy / 'model.safetensors'} cannot be read: " in refusal(copy)
    assert message in refusal(copy)


# Files that are not regular, and hostile JSON.


def _sparse(file: Path) -> None:
    os.truncate(file, 1 << 40)


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "tokenizer.json", "model.safetensors", "README.md"])
@pytest.mark.parametrize(
    "damage",
    [
        replace_by(os.mkfifo),
        replace_by(Path.mkdir),
        replace_by(lambda file: file.symlink_to(file.name)),
        replace_by(lambda file: file.symlink_to("/dev/zero")),
        _sparse,
    ],
    ids=["pipe", "folder", "loop", "device", "terabyte"],
)
def test_only_regular_files_of_limited_size_are_opened(copy: Path, name: str, damage: Damage) -> None:
    damage(copy / name)
    assert name in refusal(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "duplicate key 'a' in an object"),
        (b"[" * 100_000, "nested more than 32 deep"),
        (b"[" * 40 + b"]" * 40, "nested more than 32 deep"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b'{"a": -1e999}', "-1e999 is not a finite number"),
        (b"9" * 10_000, "integer string conversion"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "can't decode byte 0xff"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"{", "Expecting property name"),
    ],
    ids=str,
)
def test_invalid_or_hostile_json_is_refused(content: bytes, message: str, copy: Path) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(content)
    rewrite(copy, config_json=content)
    assert f"{copy / 'config.json'} is damaged: " in refusal(copy)


def test_a_folder_that_corrects_spelling_needs_its_lexicon(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", correct_spelling=True)
    assert read_model_folder(folder).lexicon is not None
    rewrite(folder, lexicon_json=b'{"texts": 0}')
    assert f"{folder / 'lexicon.json'}: texts: Input should be greater than 0" in refusal(folder)
    rewrite(folder, lexicon_json=None)
    assert "has no lexicon.json, which translate.correct_spelling = true needs" in refusal(folder)


# Paths that are not model folders.


def test_the_error_for_a_path_that_is_no_model_folder_says_what_the_path_is(tmp_path: Path) -> None:
    def make(**files: str) -> Path:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("__", ".")).write_text(content)
        return path

    (file := tmp_path / "file").touch()
    marian = make(config__json='{"model_type": "marian"}', pytorch_model__bin="")
    cases = {
        tmp_path / "none": "does not exist: expected a model folder",
        file: "is a file: expected a model folder",
        make(): "is not a model folder: it is empty",
        make(notes__txt=""): "is not a model folder: it has no manifest.json",
        marian: f"MarianMT model in Hugging Face's format: heed import --from marian {marian} --out NEW_FOLDER",
        make(config__json='{"model_type": "bart"}'): "of type 'bart'; heed imports marian and fairseq",
        make(config__json="{"): "is not a model folder: it has no manifest.json",
        make(checkpoint_best__pt=""): "heed import --from fairseq",
        make(model__bin="", shared_vocabulary__json="[]"): "it holds a CTranslate2 model, which heed cannot import",
        make(encoder__onnx=""): "it holds an ONNX model, which heed cannot import",
        make(source__spm=""): "looks like a Hugging Face model; if it is MarianMT: heed import --from marian",
    }
    for path, message in cases.items():
        assert message in refusal(path)
        with pytest.raises(HeedError, match=r"model folder|does not exist"):
            heed.load(path)
    (marian / MANIFEST).write_text('{"format": 1, "sha256": {}}')
    assert refusal(marian) == f"{marian} is damaged: manifest.json does not list config.json"
    files = {file.name: file.read_bytes() for file in marian.iterdir() if file.name != MANIFEST}
    write_folder(marian, files)  # as heed export writes it
    assert "heed import --from marian" in refusal(marian)


def test_the_error_for_an_unfinished_run_names_its_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert refusal(tmp_path / "run").endswith(f"heed train --resume --out {tmp_path}/run, and has no checkpoint yet")
    folder(tmp_path / "run" / "checkpoints" / "step-00000003")
    folder(tmp_path / "run" / "checkpoints" / "step-00000012")
    newest = tmp_path / "run" / "checkpoints" / "step-00000012"
    assert refusal(tmp_path / "run").endswith(f"its newest checkpoint can be used: {newest}")
    assert refusal(tmp_path / "run" / "checkpoints").endswith(f"did you mean {newest}?")

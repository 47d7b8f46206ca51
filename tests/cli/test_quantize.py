"""`heed quantize`, through the real command: which verbs work on the folder it writes and which refuse it."""

import json
from pathlib import Path

import pytest

from heed import load
from heed.artifacts.folder import read_model_folder
from heed.artifacts.quantization import dequantize_weights, quantize_weights
from heed.artifacts.tensors import as_tensors
from tests.cli.command import heed
from tests.interop.engine_models import TEXTS, folder

REFUSED = "holds weights quantised to int8, for translating, scoring and inspecting only; to fine-tune"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("quantize") / "model", separate=True, tie_embeddings=False)


@pytest.fixture(scope="module")
def quantized(model: Path) -> Path:
    out = model.parent / "int8"
    process = heed("quantize", str(model), "--out", str(out))
    assert process.returncode == 0, process.stderr
    assert process.stderr.startswith(f"int8 model written to {out}: ")
    return out


def test_an_int8_folder_is_a_model_folder_of_a_quarter_of_the_size(model: Path, quantized: Path) -> None:
    names = {file.name for file in quantized.iterdir()}
    assert names == {file.name for file in model.iterdir()} - {"model.safetensors"} | {"model.int8.safetensors"}
    before, after = (
        (folder / name).stat().st_size
        for folder, name in ((model, "model.safetensors"), (quantized, "model.int8.safetensors"))
    )
    assert after < before / 2  # in a small model, many weights are not in matrices
    assert "quantised to int8 by `heed quantize`" in (quantized / "README.md").read_text()
    assert json.loads((quantized / "config.json").read_text())["trained"]["quantized"] == "int8"
    assert read_model_folder(quantized).run == read_model_folder(model).run


def test_int8_weights_are_the_quantised_weights_of_the_model(model: Path, quantized: Path) -> None:
    expected = as_tensors(dequantize_weights(quantize_weights(read_model_folder(model).weights())))
    weights = read_model_folder(quantized).model().state_dict()
    assert weights.keys() == expected.keys()
    assert all((weights[name] == weight).all() for name, weight in expected.items())


def test_an_int8_folder_is_decoded_in_int8_by_default(model: Path, quantized: Path) -> None:
    opened, with_float32 = load(quantized), load(quantized, engine="heed")
    with_int8 = load(quantized, engine="heed-int8")
    by_default, in_float32, in_int8 = (
        translator.translate(TEXTS, beam=2) for translator in (opened, with_float32, with_int8)
    )
    assert [translator.backend.choice.dtype for translator in (opened, with_float32, with_int8)] == [
        "int8",
        "float32",
        "int8",
    ]
    assert [translation.score for translation in by_default] == [translation.score for translation in in_int8]
    assert any(translation.score != other.score for translation, other in zip(by_default, in_float32, strict=True))
    ours = load(model).translate(TEXTS, beam=2)
    assert all(abs(translation.score - other.score) < 0.5 for translation, other in zip(by_default, ours, strict=True))
    process = heed("translate", str(quantized), "--beam", "2", stdin="\n".join(TEXTS) + "\n")
    assert process.returncode == 0, process.stderr
    assert process.stdout == "".join(" ".join(translation.text.splitlines()) + "\n" for translation in by_default)


def test_score_evaluate_and_look_work_on_an_int8_model(quantized: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    text = str(tmp_path / "text")
    for process in (
        heed("score", str(quantized), "--source", text, "--target", text),
        heed("evaluate", str(quantized), "--source", text, "--reference", text),
        heed("look", str(quantized), TEXTS[0], "-o", f"{tmp_path}/look.html"),
    ):
        assert process.returncode == 0, process.stderr


def test_verbs_that_need_float_weights_refuse_an_int8_model(quantized: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b c\tc b a\nb a\ta b\n" * 20)
    for process in (
        heed("quantize", str(quantized), "--out", f"{tmp_path}/again"),
        heed("export", str(quantized), "--to", "marian", "--out", f"{tmp_path}/marian"),
        heed("export", str(quantized), "--to", "onnx", "--out", f"{tmp_path}/onnx"),
        heed("train", "--init-from", str(quantized), "--pairs", f"{tmp_path}/pairs.tsv", "--out", f"{tmp_path}/run",
             "--cache", f"{tmp_path}/cache"),
    ):  # fmt: skip
        assert process.returncode == 2, process.stderr
        assert f"error: {quantized} {REFUSED}" in process.stderr


def test_invalid_quantize_options_are_errors(model: Path, quantized: Path) -> None:
    process = heed("quantize", str(model), "--out", str(quantized))
    assert (process.returncode, process.stderr) == (2, f"error: {quantized} already exists: choose another --out\n")

"""`backends/select.py` alone chooses the backend: every command chooses the same one for a folder, and reports it."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import heed
from heed import ModelConfig, RunConfig, Transformer
from heed.artifacts.save import write_quantized
from heed.backends.cpu.library import _engine, engine
from heed.backends.select import inference_backend, training_plan
from heed.backends.select_native import InferenceRequest
from heed.cli.main import app
from heed.config import TrainingConfig
from heed.errors import ConfigError, InputError
from heed.fallbacks import fallbacks
from heed.serving.app import make_routes
from heed.serving.config import ServeConfig
from heed.serving.health import HealthMonitor
from heed.serving.models import Directions, open_models
from heed.serving.service import Service
from tests.interop.engine_models import TEXTS, folder

SOURCES = Path(heed.__file__).parent
CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONFIG = ModelConfig(vocab_size=20, d_model=8, heads=1, encoder_layers=1, decoder_layers=1, d_ff=8)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    float32 = folder(tmp_path_factory.mktemp("chosen") / "float32", d_model=32)
    int8 = float32.with_name("int8")
    write_quantized(float32, int8)
    return {"float32": float32, "int8": int8}


@pytest.fixture(params=["with the library", "without the library"])
def has_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether heed was installed with its C library."""
    if request.param == "without the library":
        monkeypatch.setattr("heed.backends.cpu.library.LIBRARY", Path("no-such-library"))
    _engine.cache_clear()
    yield request.param == "with the library"
    _engine.cache_clear()


def backends_reported_by_the_server(path: Path) -> dict[str, str]:
    """The backend that `heed serve` reports for each model it opens."""
    translators, other_models = open_models([path], [], {}, partial(heed.load, engine=None))
    service = Service(Directions(translators), ServeConfig(), other_models)
    with TestClient(make_routes(service, HealthMonitor(service), key_required=False)) as client:
        backends: dict[str, str] = client.get("/health/ready").json()["backends"]
    return backends


@without_gpu
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_load_translate_and_serve_choose_and_report_the_same_backend(
    dtype: str, has_library: bool, folders: dict[str, Path]
) -> None:
    choice = heed.load(folders[dtype]).backend.choice
    assert choice.dtype == dtype
    assert choice.backend == ("cpu" if has_library else "torch")
    assert ("installed without its C library" in choice.reason) is not has_library
    assert not has_library or f"compiled C for {engine().isa}" in choice.reason
    assert ("int8 because the folder is quantised" in choice.reason) is (dtype == "int8")
    assert "the GPU is not used because torch sees no GPU" in choice.reason
    translated = CliRunner().invoke(app, ["translate", str(folders[dtype]), "--verbose", "--text", TEXTS[0]])
    assert f"note: backend {choice}" in translated.stderr.splitlines()
    assert backends_reported_by_the_server(folders[dtype]) == {dtype: str(choice)}


@without_gpu
def test_a_quantised_folder_can_be_run_in_float32_and_a_float32_folder_in_int8(folders: dict[str, Path]) -> None:
    assert heed.load(folders["int8"], engine="heed").backend.choice.dtype == "float32"
    requested = heed.load(folders["float32"], engine="heed-int8").backend.choice
    assert (requested.dtype, "int8 because requested" in requested.reason) == ("int8", True)


def test_a_cpu_without_int8_runs_a_quantised_folder_in_float32_and_reports_the_fallback(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.inference.open.why_no_int8", lambda: "this CPU lacks the instructions (AVX2)")
    monkeypatch.setattr("heed.fallbacks._noted", {})
    assert heed.load(folders["int8"]).backend.choice.dtype != "int8"
    assert fallbacks() == [
        f"{folders['int8']} is quantised and runs in float32: this CPU lacks the instructions (AVX2)"
    ]
    with pytest.raises(InputError, match=r"this CPU lacks the instructions \(AVX2\): use --engine heed"):
        heed.load(folders["int8"], engine="heed-int8")


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_encoder_only_and_decoder_only_models_use_the_reference_backend(kind: str) -> None:
    model = Transformer(CONFIG.model_copy(update={"kind": kind})).eval()
    choice = inference_backend([model], InferenceRequest("heed-int8")).choice
    assert (choice.backend, choice.reason) == (
        "reference",
        f"no faster decoder exists for a Transformer with kind = {kind!r}",
    )


def test_models_with_hooks_or_in_training_mode_use_the_reference_backend_and_no_model_is_refused() -> None:
    model = Transformer(CONFIG).eval()
    with model.decoder.register_forward_hook(lambda *_: None):  # type: ignore[union-attr]
        assert inference_backend([model]).choice.reason == "the model has forward hooks"
    assert inference_backend([model.train()]).choice.backend == "reference"
    with pytest.raises(InputError, match="a search needs a model, found 0 models"):
        inference_backend([])


@without_gpu
def test_the_training_plan_reports_its_backend_and_the_reason(has_library: bool) -> None:
    config = RunConfig(model=CONFIG)
    plan = training_plan(config, CPU)
    assert plan.choice.backend == ("cpu" if has_library else "torch")
    assert ("installed without its C library" in plan.choice.reason) is not has_library
    compiled = config.model_copy(update={"training": TrainingConfig(compile=True)})
    assert (training_plan(compiled, CPU).choice.backend, training_plan(compiled, CPU).is_compiled) == ("torch", True)
    half = config.model_copy(update={"training": TrainingConfig(precision="bfloat16")})
    with pytest.raises(ConfigError, match="'bfloat16' needs a GPU"):
        training_plan(half, CPU)


@pytest.mark.parametrize(
    ("steps", "width", "expected"), [(5000, 256, True), (4999, 256, False), (10_000, 128, False), (10_000, 512, True)]
)
def test_long_runs_of_wide_models_are_compiled(
    steps: int, width: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.backends.select._why_no_capture", lambda _: None)
    model = ModelConfig(vocab_size=9, d_model=width, heads=2)
    config = RunConfig(model=model, training=TrainingConfig(max_steps=steps))
    assert training_plan(config, torch.device("cuda")).is_compiled is expected


# Code that detects compilers, instruction sets, GPUs or kernels, and the files that may contain it.
DETECTS_HARDWARE = re.compile(
    r"cuda\.is_available|device_count|get_device_capability|is_bf16_supported|find_compiler|missing_for_|HEED_ISA"
    r"|get_cpu_capability|_is_vnni|supported_engines|mkldnn\.is_available|cpuinfo|platform\.machine"
    r'|find_spec\("triton"'
)
MAY_DETECT = {"select.py", "select_native.py", "machine.py", "cpu/csrc/build.py", "cpu/library.py", "cuda/graph.py"}


def test_only_select_and_the_build_files_detect_hardware_and_compilers() -> None:
    detecting = {
        file.relative_to(SOURCES).as_posix()
        for file in SOURCES.rglob("*.py")
        if DETECTS_HARDWARE.search(file.read_text(encoding="utf-8"))
    }
    assert detecting == {f"backends/{name}" for name in MAY_DETECT}

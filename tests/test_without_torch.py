"""Translating on a CPU imports no torch; what does need it says so, and gives the results that it always gave."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heed
from heed.artifacts.folder import read_model_folder
from heed.artifacts.quantization import dequantize_weights
from heed.artifacts.save import write_quantized
from heed.backends import select_native
from heed.backends.cpu import library
from heed.backends.cpu.backend import NativeBackend
from heed.backends.cpu.layers import LayerStack, embeddings
from heed.backends.cpu.library import max_threads, missing_for_compiled_code
from heed.backends.select_native import has_certainly_no_gpu
from heed.fallbacks import fallbacks
from heed.inference.open import with_pytorch_modules
from heed.search_config import SearchConfig
from tests.interop.engine_models import TEXTS, folder

pytestmark = [
    pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code())),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU torch translates"),
]
SLOW_TO_IMPORT = ("torch", "jaxtyping", "rich", "sacrebleu", "fastapi", "uvicorn", "safetensors.torch")
HEED = "import sys; from heed.cli.main import main; sys.argv[0] = 'heed'; main()"
SEARCHES = [SearchConfig(beam=1), SearchConfig(beam=4, nbest=3)]


@pytest.fixture(scope="module", params=["float32", "int8"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    float32 = folder(tmp_path_factory.mktemp("without_torch") / "float32", d_model=84, heads=3)
    if request.param == "float32":
        return float32
    write_quantized(float32, float32.with_name("int8"))
    return float32.with_name("int8")


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which torch cannot be imported."""
    fake = tmp_path_factory.mktemp("fake") / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise ImportError('libtorch.so is missing')\n")
    return {"PYTHONPATH": str(fake.parent)}


def runs_without_torch(translator: heed.Translator) -> bool:
    return isinstance(translator.backend, NativeBackend)


def run(code: str, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def imported(code: str, *arguments: str | Path) -> list[str]:
    """Which of the modules that are slow to import a program has imported at its end."""
    report = "import atexit, sys, json; atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr));"
    process = run(report + code, *arguments)
    assert process.returncode == 0, process.stderr[-2000:]
    modules = json.loads(process.stderr.splitlines()[-1])
    return [name for name in SLOW_TO_IMPORT if name in modules]


def test_importing_heed_and_asking_for_help_imports_no_torch() -> None:
    assert imported("import heed") == []
    assert imported("import heed; heed.load; heed.Translator; heed.Translation") == []
    assert "torch" not in imported(HEED, "--help")


def test_translating_on_a_cpu_imports_nothing_that_is_slow_to_import(path: Path) -> None:
    code = "import sys, heed; print(heed.load(sys.argv[1])('A dog runs.'))"
    assert imported(code, path) == []
    assert imported(HEED, "translate", path, "--text", TEXTS[0], "--beam", "4") == []


def test_translating_works_where_torch_cannot_be_imported(path: Path, no_torch: dict[str, str]) -> None:
    expected = heed.load(path)(TEXTS)
    arguments = [argument for text in TEXTS for argument in ("--text", text)]
    process = run(HEED, "translate", path, *arguments, env=no_torch)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "".join(" ".join(text.splitlines()) + "\n" for text in expected)


@pytest.mark.parametrize(
    "call", ["score(['a'], ['b'])", "translate(['a'])", "look('a')", "model", "__class__.stream(t, 'a').__next__()"]
)
def test_what_needs_torch_says_so_where_it_cannot_be_imported(call: str, path: Path, no_torch: dict[str, str]) -> None:
    code = f"import sys, heed\nt = heed.load(sys.argv[1])\ntry: t.{call}\nexcept heed.InputError as error: print(error)"
    process = run(code, path, env=no_torch)
    assert process.stdout == (
        "this needs torch, which cannot be imported (libtorch.so is missing); without torch, heed only translates, by "
        "greedy or beam search on a CPU\n"
    ), process.stderr[-2000:]


@pytest.mark.parametrize("verb", [["translate", "--set", "search.sample=true", "--text", "a"], ["look", "a"]])
def test_a_command_that_needs_torch_ends_with_an_error_line(
    verb: list[str], path: Path, no_torch: dict[str, str]
) -> None:
    process = run(HEED, verb[0], path, *verb[1:], env=no_torch)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: this needs torch, which cannot be imported (libtorch.so is missing)")


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_translations_choice_and_settings_are_those_of_the_torch_models(path: Path, search: SearchConfig) -> None:
    translator = heed.load(path)
    assert runs_without_torch(translator)
    choice, tokens = translator.backend.choice, translator.backend.tokens_per_batch
    without_torch = translator.translate(TEXTS, search=search)
    models = translator.models
    assert not runs_without_torch(translator)
    assert (translator.backend.choice, translator.backend.tokens_per_batch) == (choice, tokens)
    assert translator.translate(TEXTS, search=search) == without_torch
    assert translator.models is models


def test_a_model_that_was_handed_out_and_changed_translates_as_changed(path: Path) -> None:
    translator = heed.load(path)
    before = translator.translate(TEXTS)
    with torch.no_grad():
        translator.model.vocabulary.embedding.weight.mul_(-1.5)
    changed = translator.translate(TEXTS)
    assert changed != before
    if translator.backend.choice.dtype == "float32":
        assert changed == with_pytorch_modules(translator).translate(TEXTS)


def test_scoring_and_aligning_build_the_models_once_and_keep_the_fast_backend(path: Path) -> None:
    translator = heed.load(path)
    translator.translate(TEXTS)
    translator.score(["a"], ["b"])
    assert runs_without_torch(translator)
    assert translator._built_models() is translator.models


def test_models_are_not_built_from_a_folder_that_was_replaced_since(path: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(path, tmp_path / "copy")
    translator = heed.load(copy)
    expected = translator.translate(TEXTS, align=False)
    shutil.rmtree(copy)
    folder(copy, d_model=16)
    assert translator.translate(TEXTS, align=False) == expected
    with pytest.raises(heed.FolderError, match="copy was replaced after it was loaded: load it again to score, align"):
        translator.score(["a"], ["b"])


def test_stored_int8_weights_are_packed_as_dequantised_and_quantised_ones(path: Path) -> None:
    stored, config = read_model_folder(path).stored_weights(), read_model_folder(path).run.model
    for side in ("encoder", "decoder"):
        stacks = [
            LayerStack(config, weights, side, embeddings(weights)[side], int8=True)
            for weights in (stored, dequantize_weights(stored))
        ]
        for direct, requantised in zip(*(stack._matrices for stack in stacks), strict=True):
            for array, expected in zip(direct._kept, requantised._kept, strict=True):
                assert (array is None) == (expected is None)
                assert array is None or expected is None or array.tobytes() == expected.tobytes()


def test_without_memory_for_the_compiled_search_the_torch_models_translate_and_a_note_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no memory for packed weights")

    expected = heed.load(path)(TEXTS)
    monkeypatch.setattr(select_native, "native_search", refuse)
    monkeypatch.setattr("heed.fallbacks._noted", {})
    translator = heed.load(path)
    assert not runs_without_torch(translator)
    assert translator(TEXTS) == expected
    assert fallbacks() == ["decoding falls back to a slower decoder: no memory for packed weights"]


@pytest.mark.parametrize(
    ("setting", "expected"), [("3", 3), ("5,2", 5), ("", "cores"), ("0", "cores"), ("many", "cores")]
)
def test_without_torch_the_number_of_threads_is_that_of_the_environment_or_the_usable_cores(
    setting: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max_threads() == torch.get_num_threads()
    monkeypatch.setattr(library, "imported_torch", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert max_threads() == (cores if expected == "cores" else expected)


class Driver:
    """CUDA's driver library, as far as it is asked."""

    def __init__(self, status: int, devices: int) -> None:
        self._status, self._devices = status, devices

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - CUDA's name
        return self._status

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        count._obj.value = self._devices  # type: ignore[attr-defined]
        return 0


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no CUDA")
@pytest.mark.parametrize(
    ("driver", "certain"), [(None, True), ((100, 0), True), ((0, 0), True), ((0, 1), False), ((999, 0), False)], ids=str
)
def test_only_where_the_driver_counts_no_gpu_is_torch_not_asked(
    driver: tuple[int, int] | None, certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_name: str) -> Driver:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return Driver(*driver)

    assert has_certainly_no_gpu()
    monkeypatch.setattr(select_native, "imported_torch", lambda: None)
    monkeypatch.setattr("heed.backends.select_native.os.path.exists", lambda _path: False)
    monkeypatch.setattr("heed.backends.select_native.ctypes.CDLL", load)
    assert has_certainly_no_gpu() is certain

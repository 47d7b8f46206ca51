import pytest
import torch

from heed.benchmarking import limits as module
from heed.benchmarking.limits import MatmulDtype, matmul_throughput, measure_limits

CPU = torch.device("cpu")
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[MatmulDtype]:
    """Makes matrices and buffers small; the dtypes whose matmuls are measured in this process."""
    monkeypatch.setattr(module, "_MATRIX_SIZES", {"cpu": (16, 32)})
    monkeypatch.setattr(module, "_BUFFER_FLOATS", {"cpu": 1000})
    dtypes: list[MatmulDtype] = []

    def recording(dtype: MatmulDtype, device: torch.device) -> float:
        dtypes.append(dtype)
        return matmul_throughput(dtype, device)

    monkeypatch.setattr(module, "matmul_throughput", recording)
    return dtypes


def test_a_cpu_that_crashes_on_bfloat16_is_measured_without_it(
    measured: list[MatmulDtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BFLOAT16_CODE", CRASH)
    result = measure_limits(CPU)
    assert result.operations.keys() == {"float32", "int8"}
    assert result.without == {"bfloat16": "kills the process (SIGILL)"}
    assert measured == ["float32", "int8"]


def test_bfloat16_on_a_cpu_is_measured_in_another_process(
    measured: list[MatmulDtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BFLOAT16_CODE", "print({threads} + 0.5)")
    result = measure_limits(CPU)
    assert result.operations["bfloat16"] == torch.get_num_threads() + 0.5
    assert result.without == {}
    assert result.bytes_read > 0
    assert result.device == f"CPU, threads: {torch.get_num_threads()}"
    assert "bfloat16" not in measured


def test_the_code_for_the_other_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[MatmulDtype, torch.device]] = []
    monkeypatch.setattr(module, "matmul_throughput", lambda *arguments: calls.append(arguments))
    exec(module._BFLOAT16_CODE.format(threads=torch.get_num_threads()))  # noqa: S102 - our own
    assert calls == [("bfloat16", CPU)]


def test_the_fastest_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 5.0, 5.0, 7.0, 7.0, 10.0])  # the start, and three runs of 5, 2 and 3 seconds
    monkeypatch.setattr(module, "now", lambda _: next(clock))
    monkeypatch.setattr(module, "_TIME_LIMIT", -1.0)
    assert module._best_seconds(lambda: None, CPU) == 2.0


def test_larger_matmuls_are_skipped_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def matmuls(_dtype: MatmulDtype, size: int, _device: torch.device) -> list[object]:
        sizes.append(size)
        return [lambda: None]

    monkeypatch.setattr(module, "_matmuls", matmuls)
    monkeypatch.setattr(module, "_best_seconds", lambda *_: 0.05 * 8 ** (len(sizes) - 1))
    assert matmul_throughput("float32", CPU) == pytest.approx(2 * 256**3 / 0.05)
    assert sizes == [256, 512]

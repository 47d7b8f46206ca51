import pytest
import torch

from heed.benchmarking import limits as room
from heed.benchmarking.limits import Dtype, matmul_throughput, measure_limits

CPU = torch.device("cpu")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[Dtype]:
    """Nothing large is done; in which arithmetic matrices are multiplied in this process."""
    monkeypatch.setattr(room, "_MATRIX_SIZES", {"cpu": (16, 32)})
    monkeypatch.setattr(room, "_BUFFER_FLOATS", {"cpu": 1000})
    done: list[Dtype] = []

    def watched(arithmetic: Dtype, device: torch.device) -> float:
        done.append(arithmetic)
        return matmul_throughput(arithmetic, device)

    monkeypatch.setattr(room, "matmul_throughput", watched)
    return done


def test_a_cpu_that_dies_of_bfloat16_is_measured_without_it(
    multiplied: list[Dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_BFLOAT16_CODE", DIES)
    found = measure_limits(CPU)
    assert found.operations.keys() == {"float32", "int8"}
    assert found.without == {"bfloat16": "kills the process (SIGILL)"}
    assert multiplied == ["float32", "int8"]


def test_the_bfloat16_of_a_cpu_is_what_another_process_found(
    multiplied: list[Dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_BFLOAT16_CODE", "print({threads} + 0.5)")
    found = measure_limits(CPU)
    assert found.operations["bfloat16"] == torch.get_num_threads() + 0.5
    assert found.without == {}
    assert found.bytes_read > 0
    assert found.device == f"CPU, threads: {torch.get_num_threads()}"
    assert "bfloat16" not in multiplied


def test_the_code_for_the_other_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Dtype, torch.device]] = []
    monkeypatch.setattr(room, "matmul_throughput", lambda *given: asked.append(given))
    exec(room._BFLOAT16_CODE.format(threads=torch.get_num_threads()))  # noqa: S102 - our own
    assert asked == [("bfloat16", CPU)]


def test_the_quickest_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 5.0, 5.0, 7.0, 7.0, 10.0])  # a beginning, and three tries of 5, 2 and 3 seconds
    monkeypatch.setattr(room, "now", lambda _: next(clock))
    monkeypatch.setattr(room, "_PATIENCE", -1.0)
    assert room._quickest(lambda: None, CPU) == 2.0


def test_a_slow_machine_is_spared_the_largest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []

    def products(_arithmetic: Dtype, side: int, _device: torch.device) -> list[object]:
        sides.append(side)
        return [lambda: None]

    monkeypatch.setattr(room, "_products", products)
    monkeypatch.setattr(room, "_quickest", lambda *_: 0.05 * 8 ** (len(sides) - 1))
    assert matmul_throughput("float32", CPU) == pytest.approx(2 * 256**3 / 0.05)
    assert sides == [256, 512]

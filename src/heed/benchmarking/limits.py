"""Measures matmul throughput and memory bandwidth, the roofline for the speed of training and decoding.

Enters: a device. Leaves: operations/s and bytes/s, the best of several runs, since other load only slows a machine.
Speeds can then be given as a share of the limit; it may exceed 100 % where weights stay in a CPU cache.
"""

import importlib
import importlib.util
import math
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from heed.backends.cpu.linear import matmul as native_matmul
from heed.backends.machine import device_name, run_in_subprocess
from heed.backends.select import has_compiled_code, has_onednn
from heed.backends.torch.linear import prepacked_linear
from heed.config import ModelConfig


@dataclass(frozen=True)
class WeightCounts:
    """Weights in the matrices of an encoder-decoder, by how often they are applied."""

    per_source_token: int  # the encoder, and the key and value projections of cross-attention
    per_target_token: int  # the rest of the decoder, and the output projection

    @classmethod
    def of(cls, config: ModelConfig) -> "WeightCounts":
        """The counts of a model with these settings."""
        d, inner = config.d_model, (3 if config.activation == "swiglu" else 2) * config.d_model * config.d_ff
        source = config.encoder_layers * (4 * d * d + inner) + config.decoder_layers * 2 * d * d
        return cls(source, config.decoder_layers * (6 * d * d + inner) + d * config.vocab_size)


def training_flops(config: ModelConfig, sources: float, targets: float) -> float:
    """Matmul FLOPs of a training step: forward and backward pass over this many source and target tokens."""
    weights = WeightCounts.of(config)
    return 6 * (weights.per_source_token * sources + weights.per_target_token * targets)


@dataclass(frozen=True)
class SearchWorkload:
    """The work of decoding one batch of sentences."""

    batch: int
    beam: int
    source_tokens: float  # per sentence
    target_tokens: float  # per sentence

    def flops(self, config: ModelConfig) -> float:
        """Matmul FLOPs of encoder and decoder."""
        weights = WeightCounts.of(config)
        decoder = weights.per_target_token * self.beam * self.target_tokens
        return 2 * self.batch * (weights.per_source_token * self.source_tokens + decoder)

    def weights_read(self, config: ModelConfig) -> float:
        """Weights read from memory: the encoder's once, the decoder's at every step, whatever the batch size."""
        weights = WeightCounts.of(config)
        return weights.per_source_token + weights.per_target_token * self.target_tokens

    def roofline_seconds(
        self, config: ModelConfig, throughput: float, bandwidth: float, bytes_per_weight: int
    ) -> float:
        """A lower bound on the time, given operations/s and bytes/s; weights in a CPU cache can be faster."""
        return max(self.flops(config) / throughput, self.weights_read(config) * bytes_per_weight / bandwidth)


def peak_memory(device: torch.device) -> int | None:
    """Peak bytes: on a GPU those torch allocated, on a CPU those of the whole process; None where it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if platform.system() == "Linux":  # getrusage would include the peak of the parent process before exec
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, flags=re.MULTILINE)
        return None if peak is None else 1024 * int(peak[1])
    if importlib.util.find_spec("resource") is None:  # Windows
        return None
    resource = importlib.import_module("resource")
    max_rss = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return max_rss if platform.system() == "Darwin" else 1024 * max_rss


MatmulDtype = Literal["float32", "bfloat16", "int8"]

_MATRIX_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
_BUFFER_FLOATS = {"cpu": 2**26, "cuda": 2**28}  # float32 values: many times the size of a cache
_MIN_RUNS, _MAX_RUNS = 3, 20
_TIME_LIMIT = 1.0  # seconds per measurement; a run that has begun is finished
_PROCESS_TIMEOUT = 120.0  # seconds for a process that imports torch first
_BFLOAT16_CODE = """
import torch
from heed.benchmarking.limits import matmul_throughput
torch.set_num_threads({threads})
print(matmul_throughput("bfloat16", torch.device("cpu")))
"""


@dataclass(frozen=True)
class MachineLimits:
    """The measured limits of a device."""

    device: str
    operations: dict[MatmulDtype, float]  # operations/s of large matmuls; a multiply-add counts as two
    bytes_read: float  # memory bandwidth, bytes/s
    without: dict[MatmulDtype, str]  # unsupported dtypes, and what goes wrong with them


def measure_limits(device: torch.device) -> MachineLimits:
    """Measure all limits. bfloat16 on a CPU runs in another process: some CPUs report support but crash with SIGILL."""
    operations: dict[MatmulDtype, float] = {"float32": matmul_throughput("float32", device)}
    unsupported: dict[MatmulDtype, str] = {}
    if device.type == "cuda":
        operations["bfloat16"] = matmul_throughput("bfloat16", device)
    else:
        output, problem = run_in_subprocess(_BFLOAT16_CODE.format(threads=torch.get_num_threads()), _PROCESS_TIMEOUT)
        if problem:
            unsupported["bfloat16"] = problem
        else:
            operations["bfloat16"] = float(output)
        operations["int8"] = matmul_throughput("int8", device)
    return MachineLimits(device_name(device), operations, memory_bandwidth(device), unsupported)


def matmul_throughput(dtype: MatmulDtype, device: torch.device) -> float:
    """Operations/s of square matmuls of the fastest size. bfloat16 may crash on a CPU: use `measure_limits`."""
    best = 0.0
    for size in _MATRIX_SIZES[device.type]:
        seconds = min(_best_seconds(matmul, device) for matmul in _matmuls(dtype, size, device))
        best = max(best, 2 * size**3 / seconds)
        if 8 * seconds > _TIME_LIMIT:  # the next size would take too long
            break
    return best


def memory_bandwidth(device: torch.device) -> float:
    """Bytes/s read from memory, of a sum over a large tensor."""
    buffer = torch.ones(_BUFFER_FLOATS[device.type], dtype=torch.float32, device=device)
    return buffer.nbytes / _best_seconds(buffer.sum, device)


def _matmuls(dtype: MatmulDtype, size: int, device: torch.device) -> list[Callable[[], object]]:
    """The available implementations: float32 on a CPU has three, and which is fastest depends on the CPU."""
    if dtype == "int8":
        a, b = (torch.randint(-100, 100, (size, size), dtype=torch.int8, device=device) for _ in range(2))
        return [lambda: torch._int_mm(a, b)]
    a, b = (torch.randn(size, size, dtype=torch.float32, device=device).to(getattr(torch, dtype)) for _ in range(2))
    matmuls: list[Callable[[], object]] = [lambda: a @ b]
    if dtype == "float32" and device.type == "cpu" and has_onednn():
        prepacked = prepacked_linear(b, None)
        matmuls.append(lambda: prepacked(a))
    if dtype == "float32" and device.type == "cpu" and has_compiled_code():
        matmuls.append(lambda: native_matmul(a, b))
    return matmuls


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """The time of the fastest run."""
    began, best, runs = now(device), math.inf, 0
    while runs < _MIN_RUNS or (runs < _MAX_RUNS and time.perf_counter() - began < _TIME_LIMIT):
        start = now(device)
        work()
        best, runs = min(best, now(device) - start), runs + 1
    return best


def now(device: torch.device) -> float:
    """The time in seconds, after all work queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

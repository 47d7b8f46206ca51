"""What a machine can do at most, found out by trying: products of large matrices, and reading memory.

Enters: a device. Leaves: operations and bytes a second, the best of several tries, since whatever else a machine does
only slows. So a speed can be given as a share; it may be more than all where some of the weights stay in a cache.
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

from heed.backends.machine import device_name, run_in_subprocess
from heed.backends.select import has_onednn
from heed.backends.torch.linear import prepacked_linear
from heed.config import ModelConfig


@dataclass(frozen=True)
class WeightCounts:
    """Numbers in the matrices of an encoder and decoder that a token meets."""

    source: int  # once for each source token: the encoder, and keys and values for the decoder
    target: int  # once for each target token: the rest of the decoder, and the words

    @classmethod
    def of(cls, config: ModelConfig) -> "WeightCounts":
        """Of a model with these settings."""
        d, inner = config.d_model, (3 if config.activation == "swiglu" else 2) * config.d_model * config.d_ff
        source = config.encoder_layers * (4 * d * d + inner) + config.decoder_layers * 2 * d * d
        return cls(source, config.decoder_layers * (6 * d * d + inner) + d * config.vocab_size)


def training_flops(config: ModelConfig, sources: float, targets: float) -> float:
    """Of learning from so many source and target tokens."""
    weights = WeightCounts.of(config)
    return 6 * (weights.source * sources + weights.target * targets)


@dataclass(frozen=True)
class SearchWorkload:
    """A search as a machine sees it: sentences at once, hypotheses each; tokens read and written a sentence."""

    batch: int
    beam: int
    sources: float
    targets: float

    def operations(self, config: ModelConfig) -> float:
        """Of all its products."""
        weights = WeightCounts.of(config)
        return 2 * self.batch * (weights.source * self.sources + weights.target * self.beam * self.targets)

    def numbers_read(self, config: ModelConfig) -> float:
        """Weights read from memory: the encoder's once, the decoder's at every step, for however many sentences."""
        weights = WeightCounts.of(config)
        return weights.source + weights.target * self.targets

    def roofline_seconds(self, config: ModelConfig, operations: float, bytes_read: float, bytes_each: int) -> float:
        """What no machine that does and reads so many a second goes below, unless it has the weights in a cache."""
        return max(self.operations(config) / operations, self.numbers_read(config) * bytes_each / bytes_read)


def peak_memory(device: torch.device) -> int | None:
    """Bytes: of a GPU those that torch had in use, of a CPU all that this process had; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if platform.system() == "Linux":  # getrusage would count what the process had that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, flags=re.MULTILINE)
        return None if found is None else 1024 * int(found[1])
    if importlib.util.find_spec("resource") is None:  # Windows
        return None
    resource = importlib.import_module("resource")
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if platform.system() == "Darwin" else 1024 * most


Dtype = Literal["float32", "bfloat16", "int8"]

_MATRIX_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
_BUFFER_FLOATS = {"cpu": 2**26, "cuda": 2**28}  # of four bytes: many times what a cache holds
_FEWEST, _MOST = 3, 20  # tries
_PATIENCE = 1.0  # seconds for one kind of work; a try that has begun is finished
_APART = 120.0  # seconds for a process that has torch to import first
_BFLOAT16_CODE = """
import torch
from heed.benchmarking.limits import matmul_throughput
torch.set_num_threads({threads})
print(matmul_throughput("bfloat16", torch.device("cpu")))
"""


@dataclass(frozen=True)
class MachineLimits:
    """What a device can do in a second."""

    device: str
    operations: dict[Dtype, float]  # in products of large matrices: two for each multiplication
    bytes_read: float
    without: dict[Dtype, str]  # arithmetic it does not have, and what happens


def measure_limits(device: torch.device) -> MachineLimits:
    """All of them; a CPU's bfloat16 is tried in a process of its own, since some CPUs advertise it and die of it."""
    operations: dict[Dtype, float] = {"float32": matmul_throughput("float32", device)}
    without: dict[Dtype, str] = {}
    if device.type == "cuda":
        operations["bfloat16"] = matmul_throughput("bfloat16", device)
    else:
        said, wrong = run_in_subprocess(_BFLOAT16_CODE.format(threads=torch.get_num_threads()), _APART)
        if wrong:
            without["bfloat16"] = wrong
        else:
            operations["bfloat16"] = float(said)
        operations["int8"] = matmul_throughput("int8", device)
    return MachineLimits(device_name(device), operations, memory_bandwidth(device), without)


def matmul_throughput(arithmetic: Dtype, device: torch.device) -> float:
    """Of a product of square matrices, the largest that do not take too long. Not bfloat16 on a CPU: see `limits`."""
    best = 0.0
    for side in _MATRIX_SIZES[device.type]:
        took = min(_quickest(product, device) for product in _products(arithmetic, side, device))
        best = max(best, 2 * side**3 / took)
        if 8 * took > _PATIENCE:
            break
    return best


def memory_bandwidth(device: torch.device) -> float:
    """Read from memory."""
    numbers = torch.ones(_BUFFER_FLOATS[device.type], dtype=torch.float32, device=device)
    return numbers.nbytes / _quickest(numbers.sum, device)


def _products(arithmetic: Dtype, side: int, device: torch.device) -> list[Callable[[], object]]:
    """The ways there are; float32 on a CPU by either of torch's libraries, since which is quicker is up to the CPU."""
    if arithmetic == "int8":
        one, other = (torch.randint(-100, 100, (side, side), dtype=torch.int8, device=device) for _ in range(2))
        return [lambda: torch._int_mm(one, other)]
    one, other = (
        torch.randn(side, side, dtype=torch.float32, device=device).to(getattr(torch, arithmetic)) for _ in range(2)
    )
    by_torch: list[Callable[[], object]] = [lambda: one @ other]
    if arithmetic == "float32" and device.type == "cpu" and has_onednn():
        laid = prepacked_linear(other, None)
        by_torch.append(lambda: laid(one))
    return by_torch


def _quickest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that it takes at its best."""
    began, best, tries = now(device), math.inf, 0
    while tries < _FEWEST or (tries < _MOST and time.perf_counter() - began < _PATIENCE):
        start = now(device)
        work()
        best, tries = min(best, now(device) - start), tries + 1
    return best


def now(device: torch.device) -> float:
    """A clock to take differences of, once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

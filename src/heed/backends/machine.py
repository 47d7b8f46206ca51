"""This machine: processors, GPUs, memory, what works here and what is installed; for the doctor and the benchmarks."""

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

import torch

from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.select import InferenceRequest, default_device, inference_backend, inference_device, training_plan
from heed.config import ModelConfig, RunConfig
from heed.model.transformer import Transformer

_TINY = ModelConfig(vocab_size=8, d_model=8, heads=1, encoder_layers=1, decoder_layers=1, d_ff=8)  # of any size

_PROBE = "import torch; ones = torch.ones(256, 256, dtype=torch.bfloat16); print(float((ones @ ones)[0, 0]))"


@dataclass(frozen=True)
class Gpu:
    """A CUDA device; memory in bytes."""

    name: str
    memory: int
    free: int
    bfloat16: bool


@dataclass(frozen=True)
class Machine:
    """Where heed is running; memory in bytes, None where the system does not say."""

    system: str
    python: str
    torch: str
    cores: int
    threads: int
    instructions: str
    memory: int | None
    cpu_bfloat16: str  # "works", or what happened
    cpu_compiled: str  # the same of compiled code of our own
    inference: dict[str, str]  # by the dtype of a folder's weights: the backend that translates, and why
    training: str  # the backend that computes gradients, and why
    gpus: tuple[Gpu, ...]
    packages: dict[str, dict[str, str | None]]  # of each extra: the version that is installed


def describe_machine() -> Machine:
    """All about this machine that matters to training."""
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        instructions=cpu_instructions(),
        memory=total_memory(torch.device("cpu")),
        cpu_bfloat16=probe_bfloat16(),
        cpu_compiled=missing_for_compiled_code() or "works",
        inference=_inference_choices(),
        training=str(training_plan(RunConfig(model=_TINY), default_device()).choice),
        gpus=tuple(_gpu(number) for number in range(torch.cuda.device_count())),
        packages=optional_packages(),
    )


def _inference_choices() -> dict[str, str]:
    chosen = {}
    for dtype, request in (("float32", InferenceRequest()), ("int8", InferenceRequest(is_quantized=True))):
        model = Transformer(_TINY).eval().to(inference_device(request))
        chosen[dtype] = str(inference_backend([model], request).choice)
    return chosen


def _gpu(number: int) -> Gpu:
    free, there = torch.cuda.mem_get_info(number)
    return Gpu(torch.cuda.get_device_name(number), there, free, torch.cuda.is_bf16_supported(including_emulation=False))


def probe_bfloat16(code: str = _PROBE, seconds: float = 60.0) -> str:
    """What becomes of a bfloat16 matrix product on this CPU; in a process of its own, since some CPUs die of it."""
    said, wrong = run_in_subprocess(code, seconds)
    return wrong or ("works" if said == "256.0\n" else f"gives {said.strip()} instead of 256.0")


def run_in_subprocess(code: str, seconds: float) -> tuple[str, str]:
    """What Python code prints in a process of its own, and what went wrong there, if anything did."""
    command = [sys.executable, "-c", code]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return "", f"no answer in {seconds:g} seconds"
    if child.returncode < 0:
        return "", f"kills the process ({signal.Signals(-child.returncode).name})"
    if child.returncode:
        return "", f"fails: {child.stderr.strip().rpartition(chr(10))[2]}"
    return child.stdout, ""


def optional_packages() -> dict[str, dict[str, str | None]]:
    """The packages each extra of heed would install, and their versions here; None where one is missing."""
    found: dict[str, dict[str, str | None]] = {}
    installed = _version("heed") is not None  # and not only on Python's path
    for requirement in (installed and importlib.metadata.requires("heed")) or ():
        parts = re.match(r"([\w.-]+).*extra == [\"'](\w+)", requirement)
        if parts and parts[2] != "dev":
            found.setdefault(parts[2], {})[parts[1]] = _version(parts[1])
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_instructions() -> str:
    """The widest instruction set that torch uses on this CPU."""
    return torch.backends.cpu.get_cpu_capability()


def device_name(device: torch.device) -> str:
    """As it is shown to people."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"


def total_memory(device: torch.device) -> int | None:
    """Bytes of memory that a device has; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf; others need not know these names
        return None

"""Describes this machine for `heed doctor` and the benchmarks: CPU, GPUs, memory, backends, installed packages."""

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

import torch

from heed.backends.cpu.library import engine, missing_for_compiled_code
from heed.backends.select import default_device, inference_backend, inference_device, training_plan
from heed.backends.select_native import InferenceRequest
from heed.config import ModelConfig, RunConfig
from heed.model.transformer import Transformer

_TINY = ModelConfig(vocab_size=8, d_model=8, heads=1, encoder_layers=1, decoder_layers=1, d_ff=8)
_BFLOAT16_PROBE = "import torch; ones = torch.ones(256, 256, dtype=torch.bfloat16); print(float((ones @ ones)[0, 0]))"


@dataclass(frozen=True)
class Gpu:
    """A CUDA device; memory in bytes."""

    name: str
    memory: int
    free: int
    bfloat16: bool


@dataclass(frozen=True)
class Machine:
    """The hardware and software heed runs on; memory in bytes, None where the system does not report it."""

    system: str
    python: str
    torch: str
    cores: int
    threads: int
    instructions: str
    memory: int | None
    cpu_bfloat16: str  # "works", or the failure
    cpu_compiled: str  # the instruction set that compiled C is for, or why there is none
    inference: dict[str, str]  # by dtype of the weights: the selected backend and the reason
    training: str  # the selected backend and the reason
    gpus: tuple[Gpu, ...]
    packages: dict[str, dict[str, str | None]]  # by extra and package: the installed version


def describe_machine() -> Machine:
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        instructions=cpu_instructions(),
        memory=total_memory(torch.device("cpu")),
        cpu_bfloat16=probe_bfloat16(),
        cpu_compiled=missing_for_compiled_code() or engine().isa,
        inference=_inference_choices(),
        training=str(training_plan(RunConfig(model=_TINY), default_device()).choice),
        gpus=tuple(_gpu(number) for number in range(torch.cuda.device_count())),
        packages=optional_packages(),
    )


def _inference_choices() -> dict[str, str]:
    choices = {}
    for dtype, request in (("float32", InferenceRequest()), ("int8", InferenceRequest(is_quantized=True))):
        model = Transformer(_TINY).eval().to(inference_device(request))
        choices[dtype] = str(inference_backend([model], request).choice)
    return choices


def _gpu(number: int) -> Gpu:
    free, total = torch.cuda.mem_get_info(number)
    return Gpu(torch.cuda.get_device_name(number), total, free, torch.cuda.is_bf16_supported(including_emulation=False))


def probe_bfloat16(code: str = _BFLOAT16_PROBE, seconds: float = 60.0) -> str:
    """Whether a bfloat16 matmul works on this CPU; in a subprocess, since on some CPUs it kills the process."""
    output, failure = run_in_subprocess(code, seconds)
    return failure or ("works" if output == "256.0\n" else f"gives {output.strip()} instead of 256.0")


def run_in_subprocess(code: str, seconds: float) -> tuple[str, str]:
    """Run Python code in a subprocess; returns its output and an empty string, or an empty string and the failure."""
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
    """The packages of each of heed's extras and their installed versions; None: not installed."""
    extras: dict[str, dict[str, str | None]] = {}
    installed = _version("heed") is not None  # False if heed is only on the path
    for requirement in (installed and importlib.metadata.requires("heed")) or ():
        parts = re.match(r"([\w.-]+).*extra == [\"'](\w+)", requirement)
        if parts and parts[2] != "dev":
            extras.setdefault(parts[2], {})[parts[1]] = _version(parts[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_instructions() -> str:
    """The widest instruction set that torch uses on this CPU."""
    return torch.backends.cpu.get_cpu_capability()


def device_name(device: torch.device) -> str:
    """The GPU's name, or the number of CPU threads that torch uses."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"


def total_memory(device: torch.device) -> int | None:
    """Memory of a device in bytes; None where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no sysconf on Windows; other systems may lack these names
        return None

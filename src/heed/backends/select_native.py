"""The part of `select` that needs no torch: what was requested, and whether compiled C runs it alone.

Importing torch takes seconds, most of the time of a short translation. So what translates on a CPU is decided here
first; whatever compiled C does not run alone (GPUs, ensembles, other precisions, models for comparison) goes to
`select`. The choice and its reason are worded here for both.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from heed.backends.cpu.backend import NativeBackend, native_search
from heed.backends.cpu.layers import Weights
from heed.backends.cpu.library import engine, missing_for_compiled_code
from heed.backends.memory import keep_freed_memory
from heed.backends.protocol import CPU_TOKENS, Backend, BackendChoice
from heed.config import ModelConfig
from heed.fallbacks import note_fallback
from heed.interop.engine_names import EngineName
from heed.model.torch_state import imported_torch

Precision = Literal["auto", "bfloat16", "float32"]
InferenceDtype = Literal["float32", "int8"]

NO_GPU = "torch sees no GPU"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class InferenceRequest:
    """The engine and precision requested for inference; by default the fastest for the stored weights."""

    engine: EngineName | None = None
    precision: Precision = "auto"
    is_quantized: bool = False  # the stored weights are int8

    @property
    def dtype(self) -> InferenceDtype:
        """The dtype of matmuls on a CPU."""
        return "int8" if self.engine == "heed-int8" or (self.engine is None and self.is_quantized) else "float32"

    @property
    def is_heed(self) -> bool:
        """Whether heed runs the model, and not another system's engine."""
        return self.engine in (None, "heed", "heed-int8")


def runs_without_torch(configs: Sequence[ModelConfig], request: InferenceRequest) -> bool:
    """Whether compiled C translates with these models without torch."""
    return (
        len(configs) == 1
        and configs[0].kind == "encoder-decoder"
        and configs[0].comparison_only is None
        and request.is_heed
        and request.precision != "bfloat16"
        and missing_for_compiled_code() is None
        and has_certainly_no_gpu()
    )


def native_backend(
    config: ModelConfig, weights: Weights, request: InferenceRequest, stepwise: Callable[[], Backend]
) -> NativeBackend | None:
    """The backend in compiled C; None: there is no memory for it. stepwise: makes the torch model's backend."""
    keep_freed_memory()
    try:
        search = native_search(config, weights, int8=request.dtype == "int8")
    except (MemoryError, OSError) as error:
        note_fallback(f"decoding falls back to a slower decoder: {error}")
        return None
    choice = cpu_choice("cpu", f"compiled C for {engine().isa}", request, NO_GPU)
    return NativeBackend(config, search, choice, CPU_TOKENS, stepwise)


def cpu_choice(backend: str, reason: str, request: InferenceRequest, no_gpu: str) -> BackendChoice:
    """The choice of a backend on the CPU. no_gpu: why the GPU is not used."""
    if request.dtype == "int8":
        reason += f"; int8 because {'requested' if request.engine == 'heed-int8' else 'the folder is quantised'}"
    return BackendChoice(backend, request.dtype, "cpu", f"{reason}; the GPU is not used because {no_gpu}")


def why_no_int8() -> str | None:
    """Why int8 matmuls do not run on this CPU; None: they do."""
    if missing_for_compiled_code() is None:
        return None
    import torch  # noqa: PLC0415 - it takes seconds

    if "fbgemm" in torch.backends.quantized.supported_engines:
        return None
    return "this CPU lacks the instructions (AVX2) for int8 matmuls"


def has_certainly_no_gpu() -> bool:
    """Whether torch can use no GPU; False: it can, or only torch knows."""
    if (torch := imported_torch()) is not None:
        return not torch.cuda.is_available()
    if sys.platform == "darwin":
        return True  # torch has no CUDA there
    if os.path.exists("/dev/kfd"):  # an AMD GPU, which torch may be built for
        return False
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return True
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return status == _NO_DEVICE or (status == 0 and count.value == 0)

"""Selects the backend for inference and training from hardware and settings, and reports the reason.

Enters: models, settings and the request. Leaves: a backend with its `BackendChoice`, one of:

    cuda         a whole search in CUDA graphs and Triton kernels, in bfloat16 or float32: one model, on a GPU
    cpu          the engine in C for this processor's instruction set, in float32 or int8
    torch        torch operators with prepacked weights on a CPU, in float32 or int8
    reference    `Transformer.step`: modified models, models with hooks or in training mode, GPUs without Triton
    ctranslate2, onnx   other systems' engines, only on request

and for training: a CUDA graph (cuda), compiled C (cpu) or torch. `select_native` comes before this module: it chooses
`cpu` for translating where that needs no torch.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from heed.backends.base import TORCH_OPS, SearchOps, Stepper, TrainingOps
from heed.backends.cpu import search_ops as native_ops
from heed.backends.cpu.bpe import NativeBpeDropout
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.library import engine, missing_for_compiled_code
from heed.backends.cpu.training import training_ops as native_training_ops
from heed.backends.cuda.graph import missing_for_graphs
from heed.backends.memory import keep_freed_memory
from heed.backends.protocol import CPU_TOKENS, GPU_TOKENS, Backend, BackendChoice
from heed.backends.select_native import NO_GPU, InferenceRequest, Precision, cpu_choice
from heed.backends.stepping import HeedBackend, why_reference_only
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import MakeLinear, compiled_linear, int8_linear, plain_linear, prepacked_linear
from heed.backends.torch.training import training_ops as torch_training_ops
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError, InputError
from heed.fallbacks import note_fallback
from heed.interop.engine_names import EngineName, require_engine
from heed.model.transformer import Transformer
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import Tokenizer, TokenizerPair

if TYPE_CHECKING:
    from heed.backends.cuda.engine import StaticEngine

_BFLOAT16_CAPABILITY = 8  # first major compute capability with bfloat16 tensor cores
# torch.compile takes 13 s or more, which only many steps of a wide model repay: at width 128 it gains nothing.
_MIN_STEPS_TO_COMPILE, _MIN_WIDTH_TO_COMPILE = 5000, 256


# ---- inference -------------------------------------------------------------------------------------------------------


def has_gpu() -> bool:
    """Whether torch can use a GPU."""
    return torch.cuda.is_available()


def default_device() -> torch.device:
    """The device of models and training: the GPU if there is one."""
    return torch.device("cuda" if has_gpu() else "cpu")


def inference_device(request: InferenceRequest) -> torch.device:
    """The device of a model's weights: int8 and other systems' engines run on the CPU."""
    return torch.device("cpu") if request.dtype == "int8" or not request.is_heed else default_device()


def inference_backend(
    models: Sequence[Transformer], request: InferenceRequest | None = None, *, whole_search: bool = True
) -> HeedBackend:
    """The backend of heed's own models, on the device of their weights.

    whole_search: False where the weights change too often to build a whole-search engine for them.
    """
    request = request or InferenceRequest()
    if not models:
        raise InputError("a search needs a model, found 0 models")
    device = models[0].device
    obstacle = _why_no_whole_search(models) if whole_search else "the weights change between searches"
    if obstacle is None:
        dtype, static_engine = _static_engine(models[0], request.precision)
        choice = BackendChoice("cuda", dtype, str(device), "CUDA graphs and Triton kernels")
        tokens = static_engine.tokens_per_batch
        return HeedBackend(models, choice, search_ops(device), _make_stepper, request.dtype, tokens, static_engine)
    if request.precision == "bfloat16":
        raise InputError(f"precision = 'bfloat16' is not available, use 'float32': {obstacle}")
    choice = _stepping_choice(models[0], request, obstacle)
    tokens = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
    return HeedBackend(models, choice, search_ops(device), _make_stepper, request.dtype, tokens)


def other_engine(
    name: EngineName, files: Mapping[str, bytes], config: ModelConfig, tokenizers: TokenizerPair
) -> Backend:
    """The backend of another system's engine, opened from its exported files."""
    require_engine(name)
    dtype = "int8" if name.endswith("-int8") else "float32"
    if name == "onnx":
        from heed.backends.onnx import OnnxBackend  # noqa: PLC0415 - an extra

        choice = BackendChoice("onnx", dtype, "cpu", "ONNX Runtime under heed's search, as requested")
        return OnnxBackend(files, config, choice, search_ops(torch.device("cpu")))
    from heed.backends.ctranslate2 import CTranslate2Backend  # noqa: PLC0415 - an extra

    choice = BackendChoice("ctranslate2", dtype, "cpu", "CTranslate2 with its own search, as requested")
    return CTranslate2Backend.open(files, config, tokenizers, choice)


def _why_no_whole_search(models: Sequence[Transformer]) -> str | None:
    if not has_gpu():
        return NO_GPU
    if models[0].device.type == "cpu":
        return "the model is on the CPU"
    if len(models) > 1:
        return "an ensemble of several models"
    return missing_for_graphs() or why_reference_only(models[0])


def _static_engine(model: Transformer, precision: Precision) -> tuple[str, "StaticEngine"]:
    from heed.backends.cuda.engine import StaticEngine  # noqa: PLC0415 - needs Triton
    from heed.backends.cuda.triton_ops import TRITON  # noqa: PLC0415 - needs Triton

    is_capable = torch.cuda.get_device_capability(model.device)[0] >= _BFLOAT16_CAPABILITY
    use_bfloat16 = precision == "bfloat16" or (precision == "auto" and is_capable)
    dtype = torch.bfloat16 if use_bfloat16 else torch.float32
    return "bfloat16" if use_bfloat16 else "float32", StaticEngine(model, dtype, TRITON)


# ---- one step of one model -------------------------------------------------------------------------------------------


def _cpu_backend(model: Transformer, dtype: str) -> tuple[str, str]:
    """The backend of a model on the CPU, and the reason."""
    if model.vocabulary.embedding.weight.dtype != torch.float32:
        return "torch", f"torch operators: the weights are {model.vocabulary.embedding.weight.dtype}"
    if (missing := missing_for_compiled_code()) is not None:
        return "torch", f"{'fbgemm' if dtype == 'int8' else 'torch operators'}, slower than compiled C: {missing}"
    return "cpu", f"compiled C for {engine().isa}"


def _make_stepper(model: Transformer, dtype: str) -> Stepper | None:
    """The fastest stepper of a model on the CPU that memory allows: each holds a copy of the weights."""
    keep_freed_memory()  # every step allocates megabytes for its logits
    linear = _linear(dtype)
    candidates: list[Callable[[], Stepper]] = [
        partial(NativeDecoder, model, int8=dtype == "int8"),
        partial(TorchDecoder, model, linear),
    ]
    for make in candidates if _cpu_backend(model, dtype)[0] == "cpu" else candidates[1:]:
        try:
            return make()
        except (MemoryError, OSError, RuntimeError) as error:  # torch raises RuntimeError when out of memory
            note_fallback(f"decoding falls back to a slower decoder: {error}")
    return None


def _linear(dtype: str) -> MakeLinear:
    """The linear layers for inference on this CPU."""
    if dtype == "int8":
        if has_compiled_code():
            return partial(compiled_linear, int8=True)
        return int8_linear(reduce_range=not torch.cpu._is_vnni_supported())
    return prepacked_linear if has_onednn() else plain_linear


def has_compiled_code() -> bool:
    """Whether compiled C runs on this machine."""
    return missing_for_compiled_code() is None


def has_onednn() -> bool:
    """Whether torch has oneDNN, on a processor for which its prepacked weights were tested."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def _stepping_choice(model: Transformer, request: InferenceRequest, no_gpu: str) -> BackendChoice:
    """The choice of a backend that decodes step by step."""
    device, dtype = model.device, request.dtype
    weight_dtype = str(model.vocabulary.embedding.weight.dtype).removeprefix("torch.")
    if (changed := why_reference_only(model)) is not None:
        return BackendChoice("reference", weight_dtype, str(device), changed)
    if device.type != "cpu":
        return BackendChoice("reference", weight_dtype, str(device), f"no CUDA graphs: {no_gpu}")
    backend, reason = _cpu_backend(model, dtype)
    return cpu_choice(backend, reason, request, "int8 is for CPUs" if dtype == "int8" and has_gpu() else no_gpu)


def search_ops(device: torch.device) -> SearchOps:
    """Top-k, argmax and beam step for log-probabilities on this device."""
    if device.type == "cpu" and has_compiled_code():
        return SearchOps(native_ops.beam_step, native_ops.topk, native_ops.argmax)
    return TORCH_OPS


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingPlan:
    """The selected implementation of forward and backward pass, and the reason."""

    choice: BackendChoice
    is_captured: bool  # each step replays a CUDA graph; batches are padded to static shapes
    is_compiled: bool  # layers are compiled by torch.compile
    has_native_matmul: bool = False  # linear layers in compiled C too
    kernels: str = "torch's"  # what computes on a CPU: another instruction set rounds differently

    @property
    def bfloat16(self) -> bool:
        """Whether activations are bfloat16; master weights and sums stay float32."""
        return self.choice.dtype == "bfloat16"

    def eager(self) -> "TrainingPlan":
        """This plan without a CUDA graph."""
        if not self.is_captured:
            return self
        return replace(self, choice=replace(self.choice, backend="torch"), is_captured=False)


def training_plan(config: RunConfig, device: torch.device, *, compiled: bool | None = None) -> TrainingPlan:
    """Select the implementation of forward and backward pass on this device.

    compiled: whether the run was started with torch.compile; none: decided by the settings and the number of steps.
    """
    settings = config.training
    if settings.precision == "bfloat16" and device.type == "cpu":
        raise ConfigError("training.precision = 'bfloat16' needs a GPU: some CPUs advertise it and crash the process")
    on_gpu, no_gpu = device.type == "cuda", "the CPU was requested" if has_gpu() else NO_GPU
    obstacle = _why_no_capture(config) if on_gpu else no_gpu
    if compiled is None or settings.compile is not None or obstacle is not None:
        compiled = settings.compile if settings.compile is not None else obstacle is None and _repays_compiling(config)
    dtype = "bfloat16" if settings.precision == "bfloat16" or (settings.precision == "auto" and on_gpu) else "float32"
    if obstacle is None:
        choice = BackendChoice("cuda", dtype, str(device), "CUDA graphs and Triton kernels")
        return TrainingPlan(choice, is_captured=True, is_compiled=compiled)
    if on_gpu or compiled:
        reason = f"steps are not captured: {obstacle}" if on_gpu else "training.compile = true"
        return TrainingPlan(BackendChoice("torch", dtype, str(device), reason), is_captured=False, is_compiled=compiled)
    if (missing := missing_for_compiled_code()) is not None:
        reason = f"torch operators, slower than compiled C: {missing}; the GPU is not used because {no_gpu}"
        return TrainingPlan(BackendChoice("torch", dtype, "cpu", reason), is_captured=False, is_compiled=False)
    native = not settings.shard and _is_amd()
    kernels = f"compiled C for {engine().isa}{', linear layers too' if native else ''}"
    choice = BackendChoice("cpu", dtype, "cpu", f"{kernels}; the GPU is not used because {no_gpu}")
    return TrainingPlan(choice, is_captured=False, is_compiled=False, has_native_matmul=native, kernels=kernels)


def _why_no_capture(config: RunConfig) -> str | None:
    if not config.training.capture:
        return "training.capture = false"
    if (setting := config.model.comparison_only) is not None:
        return f"model.{setting}"
    return "training.shard = true" if config.training.shard else missing_for_graphs()


def _repays_compiling(config: RunConfig) -> bool:
    return config.training.max_steps >= _MIN_STEPS_TO_COMPILE and config.model.d_model >= _MIN_WIDTH_TO_COMPILE


@cache
def _is_amd() -> bool:
    """Whether this is an AMD processor, where heed's GEMM is faster than MKL's; only Linux says so in a file."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "AuthenticAMD" in platform.processor()


def training_ops(model: Transformer, plan: TrainingPlan, *, is_sharded: bool) -> TrainingOps:
    """The forward and backward pass of a model, as planned."""
    if plan.choice.device == "cpu":
        keep_freed_memory()
    if plan.is_captured:
        from heed.backends.cuda.training import training_ops as cuda_ops  # noqa: PLC0415 - needs Triton

        return cuda_ops(model, bfloat16=plan.bfloat16, compile_layers=plan.is_compiled)
    if plan.choice.backend == "cpu":
        return native_training_ops(model, is_sharded=is_sharded, native_matmul=plan.has_native_matmul)
    return torch_training_ops(model, is_sharded=is_sharded, compile_layers=plan.is_compiled)


def bpe_dropout(tokenizer: Tokenizer, chance: float) -> BpeDropout:
    """BPE-dropout, in C if heed was installed with its C library."""
    return (NativeBpeDropout if has_compiled_code() else BpeDropout)(tokenizer, chance)

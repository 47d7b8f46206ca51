"""Which backend runs: the one place that asks what this machine can do, and says why.

Enters: models, settings and what was asked for. Leaves: a backend with its `BackendChoice`, in one of these forms:

    cuda         a whole search in CUDA graphs and Triton kernels, in bfloat16 or float32: one model, on a GPU
    cpu          C compiled for this processor, in float32 or int8
    torch        torch operators with prepacked weights on a CPU, in float32 or int8
    reference    `Transformer.step` itself: models that were changed, have hooks or train; GPUs without Triton
    ctranslate2, onnx   other systems' engines, when they are asked for by name

and for training: a CUDA graph (cuda), compiled C (cpu) or torch.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from heed.backends.base import TORCH_OPS, Backend, BackendChoice, SearchOps, Stepper, TrainingOps
from heed.backends.cpu import search_ops as native_ops
from heed.backends.cpu.bpe import CompiledBpeDropout
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.library import has_int8, missing_for_compiled_code
from heed.backends.cpu.packed_linear import Panels
from heed.backends.cpu.training import training_ops as native_training_ops
from heed.backends.cuda.graph import missing_for_graphs
from heed.backends.memory import keep_freed_memory
from heed.backends.stepping import HeedBackend, why_reference_only
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import MakeLinear, int8_linear, plain_linear, prepacked_linear
from heed.backends.torch.training import training_ops as torch_training_ops
from heed.config import ModelConfig, RunConfig
from heed.errors import ConfigError, InputError
from heed.fallbacks import note_fallback
from heed.interop.engine_names import EngineName, require_engine
from heed.model.transformer import Transformer
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from heed.backends.cuda.engine import StaticEngine

Precision = Literal["auto", "bfloat16", "float32"]
Dtype = Literal["float32", "int8"]

_WITH_BFLOAT16 = 8  # the first generation of GPUs whose tensor cores multiply it
_ON_GPU, _ON_CPU = 65_536, 4096  # tokens per batch, padding and beam included
_MANY_STEPS = 5000  # training steps from which half a minute of torch.compile is worth it
_NO_GPU = "torch sees no GPU"


@dataclass(frozen=True)
class InferenceRequest:
    """What was asked for of inference; none of it: whatever is fastest for the weights as they are."""

    engine: EngineName | None = None
    precision: Precision = "auto"
    is_quantized: bool = False  # the weights are stored in int8

    @property
    def dtype(self) -> Dtype:
        """Of matmuls on a CPU."""
        return "int8" if self.engine == "heed-int8" or (self.engine is None and self.is_quantized) else "float32"

    @property
    def is_heed(self) -> bool:
        """Whether heed's own model translates, and not another system's engine."""
        return self.engine in (None, "heed", "heed-int8")


# ---- inference -------------------------------------------------------------------------------------------------------


def has_gpu() -> bool:
    """Whether there is a GPU that torch can use."""
    return torch.cuda.is_available()


def default_device() -> torch.device:
    """The device for models and training: a GPU where there is one."""
    return torch.device("cuda" if has_gpu() else "cpu")


def inference_device(request: InferenceRequest) -> torch.device:
    """The device for a model's weights: int8 and other systems' engines run on the CPU."""
    return torch.device("cpu") if request.dtype == "int8" or not request.is_heed else default_device()


def inference_backend(
    models: Sequence[Transformer], request: InferenceRequest | None = None, *, whole_search: bool = True
) -> HeedBackend:
    """heed's own models, ready to translate wherever they are.

    whole_search: False where weights change too often for a search of its own to be built around them.
    """
    request = request or InferenceRequest()
    if not models:
        raise InputError("a search needs a model, found 0 models")
    device = _device_of(models[0])
    refused = _why_no_whole_search(models) if whole_search else "the weights change between searches"
    if refused is None:
        dtype, engine = _static_engine(models[0], request.precision)
        choice = BackendChoice("cuda", dtype, str(device), "CUDA graphs and Triton kernels")
        tokens = engine.tokens_per_batch
        return HeedBackend(models, choice, search_ops(device), _make_stepper, request.dtype, tokens, engine)
    if request.precision == "bfloat16":
        raise InputError(f"precision = 'bfloat16' cannot be had, use 'float32': {refused}")
    choice = _stepping_choice(models[0], request, refused)
    tokens = _ON_CPU if device.type == "cpu" else _ON_GPU
    return HeedBackend(models, choice, search_ops(device), _make_stepper, request.dtype, tokens)


def other_engine(
    name: EngineName, files: Mapping[str, bytes], config: ModelConfig, tokenizers: tuple[Tokenizer, Tokenizer]
) -> Backend:
    """Another system's engine, opened on the files that it takes."""
    require_engine(name)
    dtype = "int8" if name.endswith("-int8") else "float32"
    if name == "onnx":
        from heed.backends.onnx import OnnxBackend  # noqa: PLC0415 - an extra

        choice = BackendChoice("onnx", dtype, "cpu", "ONNX Runtime under heed's own search, as asked for")
        return OnnxBackend(files, config, choice, search_ops(torch.device("cpu")))
    from heed.backends.ctranslate2 import CTranslate2Backend  # noqa: PLC0415 - an extra

    choice = BackendChoice("ctranslate2", dtype, "cpu", "CTranslate2 with its own search, as asked for")
    return CTranslate2Backend.open(files, config, tokenizers, choice)


def _why_no_whole_search(models: Sequence[Transformer]) -> str | None:
    if not has_gpu():
        return _NO_GPU
    if _device_of(models[0]).type == "cpu":
        return "the model is on the CPU"
    if len(models) > 1:
        return "several models translate together"
    return missing_for_graphs() or why_reference_only(models[0])


def _static_engine(model: Transformer, precision: Precision) -> tuple[str, "StaticEngine"]:
    from heed.backends.cuda.engine import StaticEngine  # noqa: PLC0415 - as Triton
    from heed.backends.cuda.triton_ops import TRITON  # noqa: PLC0415 - needs Triton, which not every machine has

    capable = torch.cuda.get_device_capability(_device_of(model))[0] >= _WITH_BFLOAT16
    half = precision == "bfloat16" or (precision == "auto" and capable)
    dtype = torch.bfloat16 if half else torch.float32
    return "bfloat16" if half else "float32", StaticEngine(model, dtype, TRITON)


# ---- one step of one model -------------------------------------------------------------------------------------------


def _cpu_form(model: Transformer, dtype: str) -> tuple[str, str]:
    """The backend that steps for a model on the CPU, and why."""
    if model.vocabulary.embedding.weight.dtype != torch.float32:
        return "torch", f"torch operators: the weights are {model.vocabulary.embedding.weight.dtype}"
    missing = missing_for_compiled_code()
    if dtype == "int8":
        if has_int8():
            return "cpu", "compiled C with AVX-512 VNNI"
        return "torch", f"fbgemm, since {missing or 'this CPU has no AVX-512 VNNI'}"
    return (
        ("cpu", "compiled C") if missing is None else ("torch", f"torch operators, slower than compiled C: {missing}")
    )


def _make_stepper(model: Transformer, dtype: str) -> Stepper | None:
    """What steps in a model's place on the CPU; each form copies the weights, for which there may be no memory."""
    keep_freed_memory()  # the logits of a step alone are megabytes
    linear = _linear(dtype)
    forms: list[Callable[[], Stepper]] = [
        partial(NativeDecoder, model, linear, int8=dtype == "int8"),
        partial(TorchDecoder, model, linear),
    ]
    for make in forms if _cpu_form(model, dtype)[0] == "cpu" else forms[1:]:
        try:
            return make()
        except (MemoryError, OSError, RuntimeError) as error:  # torch says RuntimeError where it finds no memory
            note_fallback(f"decoder steps take a slower path: {error}")
    return None


def _linear(dtype: str) -> MakeLinear:
    """Linear layers for inference on this CPU."""
    if dtype == "int8":
        if has_int8():
            return lambda weight, bias: Panels(weight, bias, integers=True)
        return int8_linear(reduce_range=not torch.cpu._is_vnni_supported())
    return prepacked_linear if has_onednn() else plain_linear


def has_onednn() -> bool:
    """Whether oneDNN is there, and tried for this on such a processor."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def why_no_int8() -> str | None:
    """Why this CPU multiplies no int8; None: it does."""
    if has_int8() or "fbgemm" in torch.backends.quantized.supported_engines:
        return None
    return "this CPU lacks the instructions (AVX2) for int8 matmuls"


def _stepping_choice(model: Transformer, request: InferenceRequest, no_gpu: str) -> BackendChoice:
    """What will step for this model, and why."""
    device, dtype = _device_of(model), request.dtype
    own_dtype = str(model.vocabulary.embedding.weight.dtype).removeprefix("torch.")
    if (changed := why_reference_only(model)) is not None:
        return BackendChoice("reference", own_dtype, str(device), changed)
    if device.type != "cpu":
        return BackendChoice("reference", own_dtype, str(device), f"no CUDA graphs: {no_gpu}")
    backend, why = _cpu_form(model, dtype)
    if dtype == "int8":
        why += f"; int8 because {'asked for' if request.engine == 'heed-int8' else 'the folder is quantised'}"
        no_gpu = "int8 is for CPUs" if has_gpu() else no_gpu
    return BackendChoice(backend, dtype, "cpu", f"{why}; the GPU is not used because {no_gpu}")


def search_ops(device: torch.device) -> SearchOps:
    """The inner operations of a search, for log-probabilities on this device."""
    if device.type == "cpu" and missing_for_compiled_code() is None:
        return SearchOps(native_ops.beam_step, native_ops.topk, native_ops.argmax)
    return TORCH_OPS


def _device_of(model: Transformer) -> torch.device:
    return model.vocabulary.embedding.weight.device


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingPlan:
    """How gradients are computed, and why so."""

    choice: BackendChoice
    is_captured: bool  # each step replays a CUDA graph; batches are padded to static shapes
    is_compiled: bool  # layers go through torch.compile
    has_native_matmul: bool = False  # linear layers in compiled C too

    @property
    def bfloat16(self) -> bool:
        """Whether the arithmetic is in bfloat16; weights and sums stay float32."""
        return self.choice.dtype == "bfloat16"

    def eager(self) -> "TrainingPlan":
        """The same without a CUDA graph: one operation after another."""
        if not self.is_captured:
            return self
        return replace(self, choice=replace(self.choice, backend="torch"), is_captured=False)


def training_plan(config: RunConfig, device: torch.device, *, compiled: bool | None = None) -> TrainingPlan:
    """How gradients are computed on this device.

    compiled: whether layers went through torch.compile when the run began; none: as settings and length say.
    """
    settings = config.training
    if settings.precision == "bfloat16" and device.type == "cpu":
        raise ConfigError("training.precision = 'bfloat16' needs a GPU: some CPUs advertise it and crash the process")
    on_gpu, no_gpu = device.type == "cuda", "the CPU was asked for" if has_gpu() else _NO_GPU
    refused = _why_no_capture(config) if on_gpu else no_gpu
    if compiled is None or settings.compile is not None or refused is not None:
        compiled = settings.compile if settings.compile is not None else refused is None and _is_long(config)
    dtype = "bfloat16" if settings.precision == "bfloat16" or (settings.precision == "auto" and on_gpu) else "float32"
    if refused is None:
        choice = BackendChoice("cuda", dtype, str(device), "CUDA graphs and Triton kernels")
        return TrainingPlan(choice, is_captured=True, is_compiled=compiled)
    if on_gpu or compiled:
        reason = f"steps are not captured: {refused}" if on_gpu else "training.compile = true"
        return TrainingPlan(BackendChoice("torch", dtype, str(device), reason), is_captured=False, is_compiled=compiled)
    if (missing := missing_for_compiled_code()) is not None:
        reason = f"torch operators, slower than compiled C: {missing}; the GPU is not used because {no_gpu}"
        return TrainingPlan(BackendChoice("torch", dtype, "cpu", reason), is_captured=False, is_compiled=False)
    native = not settings.shard and _is_amd()
    reason = f"compiled C{', linear layers too' if native else ''}; the GPU is not used because {no_gpu}"
    choice = BackendChoice("cpu", dtype, "cpu", reason)
    return TrainingPlan(choice, is_captured=False, is_compiled=False, has_native_matmul=native)


def _why_no_capture(config: RunConfig) -> str | None:
    if not config.training.capture:
        return "training.capture = false"
    return "training.shard = true" if config.training.shard else missing_for_graphs()


def _is_long(config: RunConfig) -> bool:
    return config.training.max_steps >= _MANY_STEPS


@cache
def _is_amd() -> bool:
    """Whether this processor is of those on which our matmul is faster than MKL's."""
    return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def training_ops(model: Transformer, plan: TrainingPlan, *, is_sharded: bool) -> TrainingOps:
    """The forward and backward pass of a model that is trained by this plan."""
    if plan.choice.device == "cpu":
        keep_freed_memory()
    if plan.is_captured:
        from heed.backends.cuda.training import training_ops as cuda_ops  # noqa: PLC0415 - needs Triton

        return cuda_ops(model, bfloat16=plan.bfloat16, compile_layers=plan.is_compiled)
    if plan.choice.backend == "cpu":
        return native_training_ops(model, is_sharded=is_sharded, native_matmul=plan.has_native_matmul)
    return torch_training_ops(model, is_sharded=is_sharded, compile_layers=plan.is_compiled)


def bpe_dropout(tokenizer: Tokenizer, chance: float) -> BpeDropout:
    """BPE-dropout, in compiled code where there is a compiler."""
    return (CompiledBpeDropout if missing_for_compiled_code() is None else BpeDropout)(tokenizer, chance)

"""ONNX Runtime backend: the exported encoder and decoder graphs as a step function under heed's searches.

Enters: the files of an exported model. Leaves: a `Start` for any of heed's searches: beams, sampling and prefixes all
work. It runs on the CPU, with as many threads as torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnxruntime
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.backends.base import SearchOps, Start
from heed.backends.protocol import CPU_TOKENS, BackendChoice, Prefixes, SearchMonitor, Sources
from heed.backends.stepping import EnsembleState, start_from
from heed.config import ModelConfig
from heed.interop.onnx_export import memory_names, past_names
from heed.search_config import SearchConfig


@dataclass(frozen=True)
class OnnxState:
    """The decoder state of R = B·W hypotheses: keys and values of source and target."""

    source_mask: Bool[Tensor, "B S"]  # False on padding
    source_kv: tuple[Float[Tensor, "B H S K"], ...]  # keys and values of each layer
    past_kv: tuple[Float[Tensor, "R H C K"], ...]  # keys and values of each layer

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "OnnxState":
        past_kv = tuple(tensor.index_select(0, rows.flatten()) for tensor in self.past_kv)
        if sentences is None:
            return OnnxState(self.source_mask, self.source_kv, past_kv)
        return OnnxState(self.source_mask[sentences], tuple(kv[sentences] for kv in self.source_kv), past_kv)


class OnnxStepper:
    """Runs an exported encoder and decoder step in ONNX Runtime."""

    def __init__(self, files: Mapping[str, bytes], config: ModelConfig) -> None:
        self._config = config
        self._encoder, self._decoder = (_session(files[name]) for name in ("encoder.onnx", "decoder.onnx"))
        self._memory, self._past = memory_names(config.decoder_layers), past_names(config.decoder_layers)

    def start(self, src: Int[Tensor, "B S"]) -> OnnxState:
        """Encode the source; returns the state before the first target token."""
        outputs = self._encoder.run(["real", *self._memory], {"src": src.numpy()})
        source_mask, *source_kv = (torch.from_numpy(array) for array in outputs)
        shape = (len(src), self._config.heads, 0, self._config.head_width)
        empty = torch.zeros(shape, dtype=torch.float32, device="cpu")
        return OnnxState(source_mask, tuple(source_kv), (empty,) * len(self._past))

    def step(self, ids: Int[Tensor, "R"], state: OnnxState) -> tuple[Float[Tensor, "R V"], OnnxState]:
        """Logits after the next token of each row, and the state that includes it."""
        tensors = zip((*self._memory, *self._past), (*state.source_kv, *state.past_kv), strict=True)
        inputs = {name: tensor.numpy() for name, tensor in tensors}
        names = ["logits", *(f"new_{name}" for name in self._past)]
        outputs = self._decoder.run(names, {"ids": ids.numpy(), "real": state.source_mask.numpy(), **inputs})
        logits, *past_kv = (torch.from_numpy(array) for array in outputs)
        return logits, OnnxState(state.source_mask, state.source_kv, tuple(past_kv))


class OnnxBackend:
    """An exported model under heed's searches."""

    tokens_per_batch = CPU_TOKENS
    can_step = True

    def __init__(self, files: Mapping[str, bytes], config: ModelConfig, choice: BackendChoice, ops: SearchOps) -> None:
        self.choice, self.configs = choice, (config,)
        self._stepper, self._ops = OnnxStepper(files, config), ops

    def start(self, sources: Sources) -> Start[EnsembleState]:
        return start_from([self._stepper], self.configs[0], sources, torch.device("cpu"), self._ops)

    def search(
        self,
        _sources: Sources,
        _max_lengths: Sequence[int],
        _config: SearchConfig,
        _prefixes: Prefixes,
        _monitor: SearchMonitor | None,
    ) -> None:
        """None: ONNX Runtime has no search."""


def _session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only: its warnings do not concern heed's users
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

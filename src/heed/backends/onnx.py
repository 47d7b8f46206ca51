"""ONNX Runtime as an engine: the two exported graphs as a step function, under our own search.

Enters: the files of an exported model. Leaves: where any of our searches starts. Beams, sampling, prefixes: what our
searches can do, they can do over these graphs; only the arithmetic is another's. It works on the CPU, on as many
threads as torch has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnxruntime
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.backends.base import BackendChoice, Prefixes, SearchMonitor, SearchOps, Sources, Start
from heed.config import ModelConfig, SearchConfig
from heed.interop.onnx_export import memory_names, past_names


@dataclass(frozen=True)
class OnnxState:
    """What is remembered of R = B·W hypotheses: of the source, and of each layer's tokens so far."""

    real: Bool[Tensor, "B S"]
    memory: tuple[Float[Tensor, "B H S K"], ...]  # keys and values, layer by layer
    past: tuple[Float[Tensor, "R H C K"], ...]  # likewise

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "OnnxState":
        """The hypotheses a search goes on with."""
        past = tuple(each.index_select(0, rows.flatten()) for each in self.past)
        if sentences is None:
            return OnnxState(self.real, self.memory, past)
        return OnnxState(self.real[sentences], tuple(each[sentences] for each in self.memory), past)


class OnnxBackend:
    """The two graphs, ready to run."""

    tokens_per_batch = 4096
    can_step = True

    def __init__(self, files: Mapping[str, bytes], config: ModelConfig, choice: BackendChoice, ops: SearchOps) -> None:
        self.choice, self.configs, self._ops = choice, (config,), ops
        self._encoder, self._decoder = (_session(files[name]) for name in ("encoder.onnx", "decoder.onnx"))
        self._memory, self._past = memory_names(config.decoder_layers), past_names(config.decoder_layers)

    def start(self, sources: Sources) -> Start[OnnxState]:
        """The sources, ids without special tokens, encoded and ready to be translated."""
        (config,) = self.configs
        rows = [torch.tensor([*ids, config.eos_id], device="cpu") for ids in sources]
        src = pad_sequence(rows, batch_first=True, padding_value=config.pad_id)
        outputs = self._encoder.run(["real", *self._memory], {"src": src.numpy()})
        real, *memory = (torch.from_numpy(one) for one in outputs)
        past = torch.zeros(len(rows), config.heads, 0, config.head_width, dtype=torch.float32, device="cpu")
        state = OnnxState(real, tuple(memory), (past,) * len(self._past))
        first = torch.full((len(rows),), config.bos_id, device="cpu")
        return Start(self._step, state, first, config.eos_id, self._ops)

    def search(
        self,
        _sources: Sources,
        _max_lengths: Sequence[int],
        _config: SearchConfig,
        _prefixes: Prefixes,
        _monitor: SearchMonitor | None,
    ) -> None:
        """ONNX Runtime has no search of its own."""

    def logits(self, ids: Int[Tensor, "R"], state: OnnxState) -> tuple[Float[Tensor, "R V"], OnnxState]:
        """Logits after the next token of every row, and the state that knows it."""
        tensors = zip((*self._memory, *self._past), (*state.memory, *state.past), strict=True)
        entering = {name: tensor.numpy() for name, tensor in tensors}
        leaving = ["logits", *(f"new_{name}" for name in self._past)]
        outputs = self._decoder.run(leaving, {"ids": ids.numpy(), "real": state.real.numpy(), **entering})
        logits, *past = (torch.from_numpy(one) for one in outputs)
        return logits, OnnxState(state.real, state.memory, tuple(past))

    def _step(self, ids: Int[Tensor, "R"], state: OnnxState) -> tuple[Float[Tensor, "R V"], OnnxState]:
        logits, state = self.logits(ids, state)
        never = torch.tensor([self.configs[0].pad_id, self.configs[0].bos_id], device="cpu")
        return logits.log_softmax(-1).index_fill(-1, never, -torch.inf), state


def _session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors alone: what it warns of concerns none of our users
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

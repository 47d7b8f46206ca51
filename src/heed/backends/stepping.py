"""heed's own models as a backend: where a search meets the model.

Enters: one model, or several that translate together, and source ids. Leaves: a `Start`. Several models predict the
mean of their probabilities. Who steps in a model's place, in which form of the arithmetic, is chosen in `select`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from heed.backends.base import (
    BackendChoice,
    Hypothesis,
    Prefixes,
    SearchMonitor,
    SearchOps,
    Sources,
    Start,
    State,
    Stepper,
)
from heed.config import ModelConfig, SearchConfig
from heed.errors import InputError
from heed.fallbacks import note_fallback
from heed.model.cache import KVCache
from heed.model.layers import DecoderLayer
from heed.model.transformer import Transformer

MakeStepper: TypeAlias = Callable[[Transformer, str], Stepper | None]


@runtime_checkable
class WholeSearch(Protocol):
    """A search of its own over one model."""

    def search(
        self, sources: Sources, max_lengths: Sequence[int], config: SearchConfig, monitor: SearchMonitor | None = None
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first; None where it does not take these settings."""


@dataclass(frozen=True)
class EnsembleState:
    """What each of several models remembers of the same hypotheses."""

    each: tuple[State, ...]

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "EnsembleState":
        """The hypotheses a search goes on with, for every model."""
        return EnsembleState(tuple(state.select(rows, sentences) for state in self.each))


@dataclass(frozen=True)
class ReferenceStepper:
    """`Transformer.step` itself, one token per row."""

    model: Transformer

    def start(self, src: Int[Tensor, "B S"]) -> KVCache:
        """The source encoded."""
        return self.model.start(src)

    def step(self, ids: Int[Tensor, "R"], cache: Any) -> tuple[Float[Tensor, "R V"], KVCache]:
        """Logits after the next token of each row, and the cache that knows it."""
        logits, cache = self.model.step(ids[:, None], cache)
        return logits[:, -1], cache


class HeedBackend:
    """heed's models as a backend: each steps by the fastest form that takes it as it is now.

    make_stepper: makes that form of one model in this dtype, or None. engine: searches on a GPU as a whole.
    """

    can_step = True

    def __init__(
        self,
        models: Sequence[Transformer],
        choice: BackendChoice,
        ops: SearchOps,
        make_stepper: MakeStepper,
        dtype: str,
        tokens_per_batch: int,
        engine: WholeSearch | None = None,
    ) -> None:
        self.models, self.choice, self.configs = list(models), choice, [model.config for model in models]
        self.tokens_per_batch = tokens_per_batch
        self._ops, self._make_stepper, self._dtype, self._engine = ops, make_stepper, dtype, engine
        check_ensemble(self.configs)

    def start(self, sources: Sources) -> Start[EnsembleState]:
        """The sources encoded by every model."""
        steppers = [self._stepper(model) for model in self.models]
        device = self.models[0].vocabulary.embedding.weight.device
        return start_from(steppers, self.configs[0], sources, device, self._ops)

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """By the engine on a GPU, if there is one and it takes these settings and the model as it is now."""
        if self._engine is None or prefixes is not None or why_reference_only(self.models[0]) is not None:
            return None
        return self._engine.search(sources, max_lengths, config, monitor)

    def _stepper(self, model: Transformer) -> Stepper:
        """Made once for a model and a dtype, and anew when the model is no longer what it was."""
        if model.vocabulary.embedding.weight.device.type != "cpu" or why_reference_only(model) is not None:
            return ReferenceStepper(model)
        identity, made = _identity(model), _made.setdefault(model, {})
        if self._dtype not in made or made[self._dtype][0] != identity:
            made[self._dtype] = (identity, self._make_stepper(model, self._dtype))
        return made[self._dtype][1] or ReferenceStepper(model)


# By dtype, what a model was when its stepper was made, and that; all of it goes when the model goes.
_made: WeakKeyDictionary[Transformer, dict[str, tuple[list[int], Stepper | None]]] = WeakKeyDictionary()


def start_from(
    steppers: Sequence[Stepper], config: ModelConfig, sources: Sources, device: torch.device, ops: SearchOps
) -> Start[EnsembleState]:
    """The sources, ids without special tokens, encoded by each of the steppers and ready to be translated."""
    if not sources:
        raise InputError("a search needs a source, found 0 sources")
    rows = [torch.tensor([*ids, config.eos_id], device="cpu") for ids in sources]
    src = pad_sequence(rows, batch_first=True, padding_value=config.pad_id).to(device)
    never = torch.tensor([config.pad_id, config.bos_id], device=device)

    def step(ids: Int[Tensor, "R"], state: EnsembleState) -> tuple[Float[Tensor, "R V"], EnsembleState]:
        stepped = [stepper.step(ids, each) for stepper, each in zip(steppers, state.each, strict=True)]
        log_probs = _mean([_log_softmax(logits) for logits, _ in stepped])
        return log_probs.index_fill_(-1, never, -torch.inf), EnsembleState(tuple(each for _, each in stepped))

    first = torch.full((len(sources),), config.bos_id, device=device)
    state = EnsembleState(tuple(stepper.start(src) for stepper in steppers))
    return Start(step, state, first, config.eos_id, ops)


def start_decoder_only(model: Transformer, rows: int, ops: SearchOps) -> Start[KVCache]:
    """Where a search starts that has no source: so many texts, all of them empty."""
    config, device = model.config, model.vocabulary.embedding.weight.device
    never = torch.tensor([config.pad_id, config.bos_id], device=device)

    def step(ids: Int[Tensor, "R"], cache: KVCache) -> tuple[Float[Tensor, "R V"], KVCache]:
        logits, cache = model.step(ids[:, None], cache)
        return logits[:, -1].float().log_softmax(-1).index_fill(-1, never, -torch.inf), cache

    first = torch.full((rows,), config.bos_id, device=device)
    return Start(step, model.start(rows=rows), first, config.eos_id, ops)


def check_ensemble(configs: Sequence[ModelConfig]) -> None:
    """Models that translate together must have the same target vocabulary."""
    if not configs:
        raise InputError("a search needs a model, found 0 models")
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        values = [getattr(config, name) for config in configs]
        if len(set(values)) > 1:
            raise InputError(f"models that translate together must agree in {name}, found {values}")


def _log_softmax(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities; on a CPU in place, since memory that was never used is slow there."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and not logits.requires_grad:
        return torch.log_softmax(logits, -1, out=logits)
    return logits.float().log_softmax(-1)


def _mean(log_probs: list[Float[Tensor, "R V"]]) -> Float[Tensor, "R V"]:
    """The logarithm of the mean of the probabilities."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def why_reference_only(model: Transformer) -> str | None:
    """Why nothing else can step in a model's place; None: it is as it was made."""
    if type(model) is not Transformer or model.encoder is None or model.decoder is None:
        return f"there are no other steps for a {type(model).__name__} of kind {model.config.kind!r}"
    if model.training:
        return "the model is in training mode"
    if any(type(layer) is not DecoderLayer for layer in model.decoder.layers):
        return "a layer of the model was replaced"
    parts = _parts_of(model)
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):
        return "the model has forward hooks"
    if any(weight is not None and weight.is_inference() for part in parts for weight in part._parameters.values()):
        note_fallback(
            "the model was made in torch.inference_mode(), whose weights can change unnoticed: it decodes by its own "
            "steps, which are slower; make it outside of inference mode"
        )
        return "the model was made in torch.inference_mode()"
    return None


def _identity(model: Transformer) -> list[int]:
    """Other numbers when a part of the model is another or any weight was changed, unless through its `.data`."""
    numbers = []
    for part in _parts_of(model):
        numbers.append(id(part))
        for weight in part._parameters.values():
            if weight is not None:
                numbers += (weight.data_ptr(), weight._version)
    return numbers


def _parts_of(model: nn.Module) -> list[nn.Module]:
    """`model.modules()` in a fifth of the time; a part that is shared comes as often as it is."""
    parts = [model]
    for part in parts:  # which grows meanwhile
        parts += [child for child in part._modules.values() if child is not None]
    return parts

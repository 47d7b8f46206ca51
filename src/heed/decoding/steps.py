"""From Transformers to a step function: where search meets the model.

Enters: one model, or several that translate together, and source ids. Leaves: a `Start` for any search. Several models
say what the mean of their probabilities says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.backends.cpu.decoder import compiled_model
from heed.backends.torch.decoder import LeanDecoder, can_be_lean, parts_of
from heed.config import ModelConfig, SearchConfig
from heed.decoding.search import Start, State
from heed.errors import InputError
from heed.fallbacks import note_fallback
from heed.model.cache import Cache
from heed.model.transformer import Transformer

_EXTRA = 50  # a translation is at most this much longer than its source, as in the paper


@runtime_checkable
class Configured(Protocol):
    """Anything that knows a model's settings; a model does."""

    @property
    def config(self) -> ModelConfig:
        """They."""


@dataclass(frozen=True)
class Caches:
    """What each of several models remembers of the same hypotheses."""

    each: tuple[State, ...]

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "Caches":
        """The hypotheses a search goes on with, for every model."""
        return Caches(tuple(cache.select(rows, sentences) for cache in self.each))


def begin(models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> Start[Caches]:
    """The sources, ids without special tokens, encoded by each of the models and ready to be translated."""
    _check(models, sources)
    return begin_with(
        [(_lean(model) if can_be_lean(model) else None) or _WholeModel(model) for model in models],
        models[0].config,
        sources,
        models[0].vocabulary.embedding.weight.device,
    )


def begin_with(
    steppers: Sequence["Stepper"], config: ModelConfig, sources: Sequence[Sequence[int]], device: torch.device
) -> Start[Caches]:
    """The same, by whatever steps as these models do."""
    rows = [torch.tensor([*ids, config.eos_id], device="cpu") for ids in sources]
    src = pad_sequence(rows, batch_first=True, padding_value=config.pad_id).to(device)
    never = torch.tensor([config.pad_id, config.bos_id], device=device)

    def step(ids: Int[Tensor, "R"], state: Caches) -> tuple[Float[Tensor, "R V"], Caches]:
        stepped = [stepper.step(ids, cache) for stepper, cache in zip(steppers, state.each, strict=True)]
        log_probs = _mean([_log_softmax(logits) for logits, _ in stepped])
        return log_probs.index_fill_(-1, never, -torch.inf), Caches(tuple(cache for _, cache in stepped))

    first = torch.full((len(sources),), config.bos_id, device=device)
    return Start(step, Caches(tuple(stepper.start(src) for stepper in steppers)), first, config.eos_id)


def _lean(model: Transformer) -> LeanDecoder | None:
    """The model's lean decoder: made once, and anew when the model is no longer what it was. None: there is none."""
    now = _identity(model)
    before = _made.get(model)
    if before is None or before[0] != now:
        before = _made[model] = (now, _fastest(model))
    return before[1]


def _fastest(model: Transformer) -> LeanDecoder | None:
    """In compiled code, or else by torch's operators: both copy the weights, for which there may be no memory."""
    for compiled in (compiled_model, lambda _: None):
        try:
            return LeanDecoder(model, compiled=compiled(model))
        except (MemoryError, OSError, RuntimeError) as error:  # torch says RuntimeError where it finds no memory
            note_fallback(f"decoder steps take a slower path: {error}")
    return None


# What a model was when its decoder was made, and that; both go when the model goes.
_made: WeakKeyDictionary[Transformer, tuple[list[int], LeanDecoder | None]] = WeakKeyDictionary()


def _identity(model: Transformer) -> list[int]:
    """Other numbers when a part of the model is another or any weight was changed, unless through its `.data`."""
    numbers = []
    for part in parts_of(model):
        numbers.append(id(part))
        for weight in part._parameters.values():
            if weight is not None:
                numbers += (weight.data_ptr(), weight._version)
    return numbers


@runtime_checkable
class Stepper(Protocol):
    """A model that takes one token a row at a time, whatever it remembers them by."""

    def start(self, src: Int[Tensor, "B S"]) -> Any:
        """Before the first token: a `State`."""

    def step(self, ids: Int[Tensor, "R"], state: Any, /) -> tuple[Float[Tensor, "R V"], Any]:
        """Logits after the next token of each row, and the state that knows it."""


@dataclass(frozen=True)
class _WholeModel:
    """A model's own steps, a token a row."""

    model: Transformer

    def start(self, src: Int[Tensor, "B S"]) -> Cache:
        return self.model.start(src)

    def step(self, ids: Int[Tensor, "R"], cache: Any) -> tuple[Float[Tensor, "R V"], Cache]:
        logits, cache = self.model.step(ids[:, None], cache)
        return logits[:, -1], cache


def greatest_lengths(models: Sequence[Configured], sources: Sequence[Sequence[int]], config: SearchConfig) -> list[int]:
    """The most tokens each translation may have: by default those of its source and 50 more.

    Never fewer than `min_length`, and never more than a model with learned positions has places for, less the one that
    its first token takes.
    """
    places = [model.config.max_length - 1 for model in models if model.config.positions == "learned"]
    wanted = [config.max_length or max(len(ids) + _EXTRA, config.min_length) for ids in sources]
    return [min(length, *places) if places else length for length in wanted]


def _log_softmax(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities; on a CPU in the place of the logits, since memory that was never used is slow there."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and not logits.requires_grad:
        return torch.log_softmax(logits, -1, out=logits)
    return logits.float().log_softmax(-1)


def _mean(log_probs: list[Float[Tensor, "R V"]]) -> Float[Tensor, "R V"]:
    """The logarithm of the mean of the probabilities."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def _check(models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> None:
    if not models or not sources:
        raise InputError(f"a search needs a model and a source, found {len(models)} models and {len(sources)} sources")
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        found = [getattr(model.config, name) for model in models]
        if len(set(found)) > 1:
            raise InputError(f"models that translate together must agree in {name}, found {found}")

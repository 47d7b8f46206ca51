"""Heed's own models as a backend: encodes sources and steps one model or an ensemble for the searches.

Enters: models and source ids. Leaves: a `Start`. An ensemble averages the probabilities of its models. Which stepper
(compiled C, torch or the reference) runs each model is decided in `select`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import SearchOps, Start, State, Stepper
from heed.backends.protocol import BackendChoice, Hypothesis, Prefixes, SearchMonitor, Sources, WholeSearch
from heed.backends.weight_versions import modules_of, weights_fingerprint
from heed.config import ModelConfig
from heed.errors import InputError
from heed.fallbacks import note_fallback
from heed.model.cache import KVCache
from heed.model.layers import DecoderLayer
from heed.model.layout import pad_rows
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig

MakeStepper: TypeAlias = Callable[[Transformer, str], Stepper | None]


@dataclass(frozen=True)
class EnsembleState:
    """The decoder states of several models for the same hypotheses."""

    states: tuple[State, ...]

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "EnsembleState":
        return EnsembleState(tuple(state.select(rows, sentences) for state in self.states))


@dataclass(frozen=True)
class ReferenceStepper:
    """`Transformer.step`, one token per row: the reference."""

    model: Transformer

    def start(self, src: Int[Tensor, "B S"]) -> KVCache:
        return self.model.start(src)

    def step(self, ids: Int[Tensor, "R"], cache: Any) -> tuple[Float[Tensor, "R V"], KVCache]:
        logits, cache = self.model.step(ids[:, None], cache)
        return logits[:, -1], cache


class HeedBackend:
    """heed's models as a backend: each runs on the fastest stepper that supports its current state.

    make_stepper: builds the stepper of one model in a dtype; None: the reference. engine: whole searches on a GPU.
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
        steppers = [self._stepper(model) for model in self.models]
        device = self.models[0].device
        return start_from(steppers, self.configs[0], sources, device, self._ops)

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """Search in one call of the GPU engine or of compiled C, where one of them supports the settings and model."""
        if len(self.models) > 1 or why_reference_only(self.models[0]) is not None:
            return None
        engine = self._engine or self._stepper(self.models[0])
        if not isinstance(engine, WholeSearch):
            return None
        return engine.search(sources, max_lengths, config, prefixes, monitor)

    def _stepper(self, model: Transformer) -> Stepper:
        """The stepper of a model and this dtype, rebuilt when the model's weights or modules have changed."""
        if model.device.type != "cpu" or why_reference_only(model) is not None:
            return ReferenceStepper(model)
        fingerprint, by_dtype = weights_fingerprint(model), _steppers.setdefault(model, {})
        if self._dtype not in by_dtype or by_dtype[self._dtype][0] != fingerprint:
            by_dtype[self._dtype] = (fingerprint, self._make_stepper(model, self._dtype))
        return by_dtype[self._dtype][1] or ReferenceStepper(model)


# For each model and dtype: the fingerprint of the weights it was built from, and the stepper. Freed with the model.
_steppers: WeakKeyDictionary[Transformer, dict[str, tuple[list[int], Stepper | None]]] = WeakKeyDictionary()


def start_from(
    steppers: Sequence[Stepper], config: ModelConfig, sources: Sources, device: torch.device, ops: SearchOps
) -> Start[EnsembleState]:
    """Encode the sources, ids without special tokens, with each stepper."""
    if not sources:
        raise InputError("a search needs a source, found 0 sources")
    src = pad_rows(([*ids, config.eos_id] for ids in sources), config.pad_id, device)
    forbidden = torch.tensor([config.pad_id, config.bos_id], device=device)

    def step(ids: Int[Tensor, "R"], state: EnsembleState) -> tuple[Float[Tensor, "R V"], EnsembleState]:
        outputs = [stepper.step(ids, old) for stepper, old in zip(steppers, state.states, strict=True)]
        log_probs = _log_mean_exp([_log_softmax(logits) for logits, _ in outputs])
        return log_probs.index_fill_(-1, forbidden, -torch.inf), EnsembleState(tuple(new for _, new in outputs))

    first = torch.full((len(sources),), config.bos_id, device=device)
    state = EnsembleState(tuple(stepper.start(src) for stepper in steppers))
    return Start(step, state, first, config.eos_id, ops)


def start_decoder_only(model: Transformer, rows: int, ops: SearchOps) -> Start[KVCache]:
    """The start of a search without a source, for decoder-only models: `rows` empty texts."""
    config, device = model.config, model.device
    forbidden = torch.tensor([config.pad_id, config.bos_id], device=device)

    def step(ids: Int[Tensor, "R"], cache: KVCache) -> tuple[Float[Tensor, "R V"], KVCache]:
        logits, cache = model.step(ids[:, None], cache)
        return logits[:, -1].float().log_softmax(-1).index_fill(-1, forbidden, -torch.inf), cache

    first = torch.full((rows,), config.bos_id, device=device)
    return Start(step, model.start(rows=rows), first, config.eos_id, ops)


def check_ensemble(configs: Sequence[ModelConfig]) -> None:
    """The models of an ensemble must share the target vocabulary."""
    if not configs:
        raise InputError("a search needs a model, found 0 models")
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        values = [getattr(config, name) for config in configs]
        if len(set(values)) > 1:
            raise InputError(f"the models of an ensemble must have the same {name}, found {values}")


def _log_softmax(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities; in place on a CPU, where freshly allocated memory costs page faults."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and not logits.requires_grad:
        return torch.log_softmax(logits, -1, out=logits)
    return logits.float().log_softmax(-1)


def _log_mean_exp(log_probs: list[Float[Tensor, "R V"]]) -> Float[Tensor, "R V"]:
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def why_reference_only(model: Transformer) -> str | None:
    """Why only the reference can run this model; None: a faster stepper can replace it."""
    setting = model.config.comparison_only
    if type(model) is not Transformer or model.encoder is None or model.decoder is None or setting is not None:
        setting = setting or f"kind = {model.config.kind!r}"
        return f"no faster decoder exists for a {type(model).__name__} with {setting}"
    if model.training:
        return "the model is in training mode"
    if any(type(layer) is not DecoderLayer for layer in model.decoder.layers):
        return "a layer of the model was replaced"
    modules = modules_of(model)
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "the model has forward hooks"
    if any(
        weight is not None and weight.is_inference() for module in modules for weight in module._parameters.values()
    ):
        note_fallback(
            "the model was created in torch.inference_mode(), where changes of its weights cannot be detected, so it "
            "decodes with the slower reference; create it outside of inference mode"
        )
        return "the model was created in torch.inference_mode()"
    return None

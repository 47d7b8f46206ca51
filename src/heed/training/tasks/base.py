"""What a task is, and what tasks share: the loss over target tokens, and passes over validation text.

A `Task` defines what its text is, what a batch holds, what the loss is and what validation measures; the trainer knows
nothing else of it. `heed.training.tasks` has them all.
"""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import FusedLoss
from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError
from heed.model.attention import AttentionFn, fused_attention
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders
from heed.text.prepared import Prepared
from heed.text.sentence_split import SourceLengths
from heed.text.tokenizer import Tokenizer
from heed.training.batches import Batch, Numbers, Ragged, Random, collate_pairs, in_order, target_tokens
from heed.training.distributed import ProcessGroup
from heed.training.loss import loss_of_logits
from heed.training.step_log import Validation

Tokenizers: TypeAlias = tuple[Tokenizer, Tokenizer]
Validate: TypeAlias = Callable[[Transformer, int], Validation]


@dataclass(frozen=True)
class HeldOut:
    """Validation text: all of it as ids, and the first source and target texts."""

    pairs: Prepared
    samples: list[list[str]]
    lengths: SourceLengths | None = None  # of the training sources


class Task(ABC):
    """What a run trains a model to do. Pairs become batches, and the loss is over target tokens, unless overridden."""

    kind: ClassVar[Literal["encoder-decoder", "decoder", "encoder"]]  # of model
    metric: ClassVar[str]  # the validation score besides the loss; one of METRICS
    sides: ClassVar[tuple[str, ...]]  # of a pair, those that are text and train the tokenizer
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}  # settings that replace a preset's

    @abstractmethod
    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        """The corpus as this task reads it; raises for one it cannot train on."""

    @abstractmethod
    def complete_data_config(self, data: DataConfig, corpora: Iterable[Corpus]) -> DataConfig:
        """The settings completed with what follows from the text; raises for those that cannot be honoured."""

    @abstractmethod
    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """What turns both sides of a pair into ids."""

    @abstractmethod
    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The arguments of the model."""

    @abstractmethod
    def validator(self, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, group: ProcessGroup) -> Validate:
        """A function that validates a model at a step."""

    def model_settings(self, data: DataConfig) -> dict[str, Any]:  # noqa: ARG002 - for tasks that override it
        """Model settings that follow from the text, besides the vocabulary."""
        return {}

    def sizes(self, pairs: Prepared) -> Numbers:
        """The tokens each pair takes of a batch's budget: the target's."""
        return target_tokens(pairs)

    def collate(self, source: Ragged, target: Ragged, random: Random) -> Batch:
        """A batch of pairs; whatever is random about it is drawn from `random`."""
        return collate_pairs(source, target, random)

    def loss(
        self,
        model: Transformer,
        batch: Batch,
        config: RunConfig,
        attend: AttentionFn = fused_attention,
        fused_loss: FusedLoss | None = None,
    ) -> Float[Tensor, ""]:
        """Label-smoothed cross-entropy, summed over a batch on the model's device.

        fused_loss: computes it from the hidden states before the output projection; none: from the logits, as R-Drop
        must in any case.
        """
        pad_id, settings = config.model.pad_id, config.training
        if fused_loss is not None and not settings.r_drop:
            hidden = model.hidden(**self.inputs(batch), attend=attend)
            matrix = model.vocabulary.output_projection()
            return fused_loss(hidden, *matrix, batch.tgt_out, pad_id, settings.label_smoothing)
        doubled = batch.twice() if settings.r_drop else batch
        logits = model(**self.inputs(doubled), attend=attend)
        return loss_of_logits(logits, doubled.tgt_out, pad_id, settings.label_smoothing, settings.r_drop)


class TextTask(Task):
    """A task on texts alone: the target of a pair, whose source is empty."""

    sides = ("target",)

    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        """A text per line, or documents."""
        if corpus.text is None:
            raise DataError(f"task = {data.task!r} learns from --text, a text a line, found {corpus.name}")
        return replace(corpus, documents=data.documents)

    def complete_data_config(self, data: DataConfig, _corpora: Iterable[Corpus]) -> DataConfig:
        """Nothing follows from the text."""
        check_one_sided(data)
        if data.labels:
            raise ConfigError(f"labels are for task = 'classify', found {data.task!r}")
        return data


def check_one_sided(data: DataConfig) -> None:
    """A pair with text on one side has one vocabulary."""
    if data.separate_vocabularies:
        raise ConfigError(
            f"separate_vocabularies needs task = 'translate', found {data.task!r}: there is one side only"
        )


class AccuracyValidator:
    """Loss and accuracy: a model's predictions against `tgt_out`, wherever that is not padding."""

    def __init__(
        self,
        task: Task,
        predict: Callable[[Transformer, Batch], Int[Tensor, "any"]],
        config: RunConfig,
        held_out: HeldOut,
        group: ProcessGroup,
    ) -> None:
        self._task, self._predict, self._config, self._held_out = task, predict, config, held_out
        self._group = validation_group(config, group)

    @torch.no_grad()
    def __call__(self, model: Transformer, _step: int) -> Validation:
        """Mean loss, and accuracy in percent."""
        model.eval()

        def measure(batch: Batch) -> tuple[float, int, int]:
            right = int((self._predict(model, batch) == batch.tgt_out).sum())
            return unsmoothed_loss(model, self._task, self._config, batch), right, batch.tokens

        loss, right, count = summed(measure, 3, self._task, self._config, self._held_out.pairs, self._group)
        return Validation(loss / count, 100 * right / count, None, self._task.metric)


def validation_group(config: RunConfig, group: ProcessGroup) -> ProcessGroup:
    """The processes that split validation: a group of one where weights are sharded, since all must do every pass."""
    return ProcessGroup() if config.training.shard else group


def mean_loss(model: Transformer, task: Task, config: RunConfig, pairs: Prepared, group: ProcessGroup) -> float:
    """The loss per token, without label smoothing or R-Drop."""

    def measure(batch: Batch) -> tuple[float, int]:
        return unsmoothed_loss(model, task, config, batch), batch.tokens

    total, tokens = summed(measure, 2, task, config, pairs, group)
    return total / tokens


def unsmoothed_loss(model: Transformer, task: Task, config: RunConfig, batch: Batch) -> float:
    """The summed loss of a batch, without label smoothing or R-Drop."""
    plain = config.training.model_copy(update={"label_smoothing": 0.0, "r_drop": 0.0})
    return task.loss(model, batch, config.model_copy(update={"training": plain}), fused_attention).item()


def summed(
    measure: Callable[[Batch], Sequence[float]],
    count: int,
    task: Task,
    config: RunConfig,
    pairs: Prepared,
    group: ProcessGroup,
) -> list[float]:
    """The `count` numbers measured of each validation batch, summed over all batches and processes."""
    sums, device = [0.0] * count, group.device()
    for number, batch in enumerate(in_order(pairs, config.training.tokens_per_batch, task.collate, task.sizes)):
        if number % group.size == group.rank:
            sums = [before + one for before, one in zip(sums, measure(batch.to(device)), strict=True)]
    return group.sum(*sums)


def distributed_map(texts: Sequence[str], work: Callable[[list[str]], list[Any]], group: ProcessGroup) -> list[Any]:
    """`work` on all texts, as JSON has its results, in order; each process works on a part."""
    gathered = group.gather(json.dumps(work(list(texts[group.rank :: group.size]))).encode())
    results: list[Any] = [None] * len(texts)
    for rank, part in enumerate(gathered):
        results[rank :: group.size] = json.loads(part)
    return results


def sample_index(step: int, samples: Sequence[object]) -> int:
    """Which sample to show: a different one at every step, always the same at the same step."""
    return zlib.crc32(str(step).encode()) % len(samples)

"""The interface of training tasks, and what they share: the loss over target tokens, and validation passes.

A `Task` defines its text, its batches, its loss and its validation; the trainer knows nothing else about it. All tasks
are in `heed.training.tasks`.
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
from heed.text.tokenizer import TokenizerPair
from heed.training.batches import Batch, IntArray, Ragged, Random, collate_pairs, in_order, target_tokens
from heed.training.distributed import ProcessGroup
from heed.training.loss import loss_of_logits
from heed.training.step_log import Validation

Validate: TypeAlias = Callable[[Transformer, int], Validation]


@dataclass(frozen=True)
class HeldOut:
    """Validation text, as ids and as samples to show."""

    pairs: Prepared  # all of it, as ids
    samples: list[list[str]]  # source and target of the first pairs, as text
    lengths: SourceLengths | None = None  # of the training sources


class Task(ABC):
    """What a model is trained to do. By default batches hold pairs, and the loss is over target tokens."""

    kind: ClassVar[Literal["encoder-decoder", "decoder", "encoder"]]  # of the model
    metric: ClassVar[str]  # the validation score besides the loss; one of METRICS
    sides: ClassVar[tuple[str, ...]]  # the sides of a pair that are text; the tokenizer is trained on them
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}  # settings that override a preset's

    @abstractmethod
    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        """The corpus as this task reads it; raises for a corpus it cannot train on."""

    @abstractmethod
    def complete_data_config(self, data: DataConfig, corpora: Iterable[Corpus]) -> DataConfig:
        """The data settings, completed from the text (labels); raises for settings that do not fit the task."""

    @abstractmethod
    def encoders(self, tokenizers: TokenizerPair, data: DataConfig) -> Encoders:
        """The encoders that turn both sides of a pair into ids."""

    @abstractmethod
    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The model's keyword arguments for a batch."""

    @abstractmethod
    def validator(
        self, config: RunConfig, tokenizers: TokenizerPair, held_out: HeldOut, group: ProcessGroup
    ) -> Validate:
        """The function that validates a model at a step."""

    def model_settings(self, data: DataConfig) -> dict[str, Any]:  # noqa: ARG002 - for tasks that override it
        """Model settings that follow from the data settings, such as the number of labels."""
        return {}

    def sizes(self, pairs: Prepared) -> IntArray:
        """The tokens that each pair takes of a batch's budget: those of its target."""
        return target_tokens(pairs)

    def collate(self, source: Ragged, target: Ragged, random: Random) -> Batch:
        """A batch of pairs; masking and the like draw from `random`."""
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

        fused_loss: computes it from the hidden states before the output projection; None: from the logits.
        """
        pad_id, smoothing, r_drop = config.model.pad_id, config.training.label_smoothing, config.training.r_drop
        passes = batch.twice() if r_drop else batch
        if fused_loss is None:
            logits = model(**self.inputs(passes), attend=attend)
            return loss_of_logits(logits, passes.tgt_out, pad_id, smoothing, r_drop)
        hidden, matrix = model.hidden(**self.inputs(passes), attend=attend), model.vocabulary.output_projection()
        return fused_loss(hidden, *matrix, passes.tgt_out, pad_id, smoothing, r_drop)


class TextTask(Task):
    """A task on monolingual text: the target of a pair whose source is empty."""

    sides = ("target",)

    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        if corpus.text is None:
            raise DataError(f"task = {data.task!r} trains on text files, one text per line, found {corpus.name}")
        return replace(corpus, documents=data.documents)

    def complete_data_config(self, data: DataConfig, _corpora: Iterable[Corpus]) -> DataConfig:
        check_single_vocabulary(data)
        if data.labels:
            raise ConfigError(f"labels are for task = 'classify', found {data.task!r}")
        return data


def check_single_vocabulary(data: DataConfig) -> None:
    """Raise for settings of a separate source vocabulary: only translation has text on both sides."""
    for name in ("separate_vocabularies", "source_tokenizer"):
        if getattr(data, name):
            raise ConfigError(f"{name} needs task = 'translate', found {data.task!r}: it has one side only")


class AccuracyValidator:
    """Validates by loss and accuracy: predictions against `tgt_out`, wherever that is not padding."""

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
        model.eval()

        def measure(batch: Batch) -> tuple[float, int, int]:
            correct = int((self._predict(model, batch) == batch.tgt_out).sum())
            return unsmoothed_loss(model, self._task, self._config, batch), correct, batch.tokens

        loss, correct, count = sum_over_batches(measure, 3, self._task, self._config, self._held_out.pairs, self._group)
        return Validation(loss / count, 100 * correct / count, None, self._task.metric)


def validation_group(config: RunConfig, group: ProcessGroup) -> ProcessGroup:
    """The processes that share validation; with sharded weights a group of one, since all must run every pass."""
    return ProcessGroup() if config.training.shard else group


def mean_loss(model: Transformer, task: Task, config: RunConfig, pairs: Prepared, group: ProcessGroup) -> float:
    """The validation loss per token, without label smoothing or R-Drop."""

    def measure(batch: Batch) -> tuple[float, int]:
        return unsmoothed_loss(model, task, config, batch), batch.tokens

    total, tokens = sum_over_batches(measure, 2, task, config, pairs, group)
    return total / tokens


def unsmoothed_loss(model: Transformer, task: Task, config: RunConfig, batch: Batch) -> float:
    """The summed loss of a batch, without label smoothing or R-Drop."""
    plain = config.training.model_copy(update={"label_smoothing": 0.0, "r_drop": 0.0})
    return task.loss(model, batch, config.model_copy(update={"training": plain}), fused_attention).item()


def sum_over_batches(
    measure: Callable[[Batch], Sequence[float]],
    count: int,
    task: Task,
    config: RunConfig,
    pairs: Prepared,
    group: ProcessGroup,
) -> list[float]:
    """The `count` values that `measure` gives for each validation batch, summed over all batches and processes."""
    sums, device = [0.0] * count, group.device()
    for index, batch in enumerate(in_order(pairs, config.training.tokens_per_batch, task.collate, task.sizes)):
        if index % group.size == group.rank:
            sums = [total + value for total, value in zip(sums, measure(batch.to(device)), strict=True)]
    return group.sum(*sums)


def distributed_map(texts: Sequence[str], work: Callable[[list[str]], list[Any]], group: ProcessGroup) -> list[Any]:
    """`work(texts)` with the texts split over the processes; results, in order, must survive JSON."""
    gathered = group.gather(json.dumps(work(list(texts[group.rank :: group.size]))).encode())
    results: list[Any] = [None] * len(texts)
    for rank, part in enumerate(gathered):
        results[rank :: group.size] = json.loads(part)
    return results


def sample_index(step: int, samples: Sequence[object]) -> int:
    """The index of the sample to show: pseudo-random, a function of the step."""
    return zlib.crc32(str(step).encode()) % len(samples)

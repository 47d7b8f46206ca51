"""What tasks share whose answers are words of the vocabulary: the loss, and the settings that follow from the text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError
from heed.model.attention import Attend, fused_attention
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus
from heed.text.prepared import Prepared
from heed.training.batches import Batch, Numbers, target_tokens
from heed.training.loss import loss_of_logits
from heed.training.task import LossOfVectors


class TokenTask(ABC):
    """A task whose loss is over the tokens of `tgt_out`."""

    @abstractmethod
    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What a model is called with."""

    def shape(self, _data: DataConfig) -> dict[str, Any]:
        """Nothing but the vocabulary."""
        return {}

    def sizes(self, pairs: Prepared) -> Numbers:
        """The target's tokens."""
        return target_tokens(pairs)

    def loss(
        self,
        model: Transformer,
        batch: Batch,
        config: RunConfig,
        attend: Attend = fused_attention,
        loss_of_vectors: LossOfVectors | None = None,
    ) -> Float[Tensor, ""]:
        """Label-smoothed cross-entropy. R-Drop needs the logits, so there `loss_of_vectors` is not asked."""
        pad_id, settings = config.model.pad_id, config.training
        if loss_of_vectors is not None and not settings.r_drop:
            vectors = model.hidden(**self.inputs(batch), attend=attend)
            matrix = model.vocabulary.output_matrix()
            return loss_of_vectors(vectors, *matrix, batch.tgt_out, pad_id, settings.label_smoothing)
        seen = batch.twice() if settings.r_drop else batch
        logits = model(**self.inputs(seen), attend=attend)
        return loss_of_logits(logits, seen.tgt_out, pad_id, settings.label_smoothing, settings.r_drop)


def check_one_sided(data: DataConfig) -> None:
    """Where a pair has one side that is text, it has one vocabulary."""
    if data.separate_vocabularies:
        raise ConfigError(
            f"separate_vocabularies needs task = 'translate', found {data.task!r}: there is one side only"
        )


class TextTask(TokenTask):
    """A task that learns from texts alone: the target of a pair, whose source is empty."""

    sides = ("target",)

    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        """A text a line, or documents."""
        if corpus.text is None:
            raise DataError(f"task = {data.task!r} learns from --text, a text a line, found {corpus.name}")
        return replace(corpus, documents=data.documents)

    def settle(self, data: DataConfig, _corpora: Iterable[Corpus]) -> DataConfig:
        """Nothing follows from the text."""
        check_one_sided(data)
        if data.labels:
            raise ConfigError(f"labels are for task = 'classify', found {data.task!r}")
        return data

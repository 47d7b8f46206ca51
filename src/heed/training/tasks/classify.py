"""Classification: an encoder-only model trained to label a text, or two texts."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import FusedLoss
from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError
from heed.model.attention import AttentionFn, fused_attention
from heed.model.layout import Packed
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus, read_pairs
from heed.text.labels import FIRST_LABEL_ID, LabelEncoder, TextPairEncoder
from heed.text.prepare import Encoders
from heed.text.prepared import Prepared
from heed.text.tokenizer import EOS
from heed.training.batches import Batch, Numbers, Ragged, Random
from heed.training.distributed import ProcessGroup
from heed.training.loss import loss_of_logits
from heed.training.tasks.base import AccuracyValidator, HeldOut, Task, Tokenizers, check_one_sided


class ClassificationTask(Task):
    """One label per text, with accuracy as its score."""

    kind = "encoder"
    metric = "accuracy"
    sides = ("source",)
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def corpus(self, corpus: Corpus, _data: DataConfig) -> Corpus:
        """A label and one or two texts per row."""
        if corpus.pairs is None:
            raise DataError(f"task = 'classify' learns from --pairs, a label and a text a row, found {corpus.name}")
        if (corpus.source_key, corpus.target_key) == ("source", "target"):  # the defaults
            corpus = replace(corpus, source_key="text", target_key="label")
        return replace(corpus, labelled=True)

    def complete_data_config(self, data: DataConfig, corpora: Iterable[Corpus]) -> DataConfig:
        """The labels are those of the text, unless they are set."""
        check_one_sided(data)
        for name in ("documents", "bpe_dropout"):
            if getattr(data, name):
                raise ConfigError(f"{name} = {getattr(data, name)!r} is of no use to task = 'classify'")
        if data.labels:
            LabelEncoder.from_names(data.labels)
            return data
        found = LabelEncoder.from_corpus(pair.target for corpus in corpora for pair in read_pairs(corpus))
        return data.model_copy(update={"labels": found.names})

    def model_settings(self, data: DataConfig) -> dict[str, Any]:
        """As many classes as there are labels."""
        return {"labels": len(data.labels)}

    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """A tokenizer for the text, and the labels."""
        return Encoders(TextPairEncoder(tokenizers[0]), LabelEncoder(data.labels))

    def sizes(self, pairs: Prepared) -> Numbers:
        """The text's tokens."""
        return pairs.source.lengths() + 1

    def collate(self, source: Ragged, target: Ragged, _random: Random) -> Batch:
        """EOS after each text; the label is a target of one token."""
        labels = torch.from_numpy(target.ids)
        src_layout = Packed.from_lengths(torch.from_numpy(source.lengths + 1))
        return Batch(
            source.with_special(EOS), labels, labels, src_layout, Packed.from_lengths([1] * len(labels)), len(labels)
        )

    def loss(
        self,
        model: Transformer,
        batch: Batch,
        config: RunConfig,
        attend: AttentionFn = fused_attention,
        _fused_loss: FusedLoss | None = None,
    ) -> Float[Tensor, ""]:
        """Cross-entropy over the classes, summed over the texts."""
        settings, ignored = config.training, config.model.pad_id - FIRST_LABEL_ID
        doubled = batch.twice() if settings.r_drop else batch
        logits = model(**self.inputs(doubled), attend=attend)
        return loss_of_logits(
            logits, _labels(doubled) - FIRST_LABEL_ID, ignored, settings.label_smoothing, settings.r_drop
        )

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The text only."""
        return {"src": batch.src, "src_layout": batch.src_layout}

    def predict(self, model: Transformer, batch: Batch) -> Int[Tensor, "B"]:
        """The most probable label of each text."""
        return model(**self.inputs(batch)).argmax(-1) + FIRST_LABEL_ID

    def validator(
        self, config: RunConfig, _tokenizers: Tokenizers, held_out: HeldOut, group: ProcessGroup
    ) -> AccuracyValidator:
        """Loss and accuracy."""
        return AccuracyValidator(self, self.predict, config, held_out, group)


def _labels(batch: Batch) -> Int[Tensor, "B"]:
    """The label of each text; padding for texts that only pad a batch, of which the last may have no token."""
    positions = batch.tgt_layout.cu_seqlens[:-1].clamp(max=len(batch.tgt_out) - 1)
    return batch.tgt_out[positions]

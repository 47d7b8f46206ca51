"""The task `classify`: an encoder-only model trained to label a text or a pair of texts."""

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
from heed.text.tokenizer import EOS, TokenizerPair
from heed.training.batches import Batch, IntArray, Ragged, Random
from heed.training.distributed import ProcessGroup
from heed.training.loss import loss_of_logits
from heed.training.tasks.base import AccuracyValidator, HeldOut, Task, check_single_vocabulary


class ClassificationTask(Task):
    """Text classification, scored by accuracy."""

    kind = "encoder"
    metric = "accuracy"
    sides = ("source",)
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def corpus(self, corpus: Corpus, _data: DataConfig) -> Corpus:
        """Rows of a label and one or two texts."""
        if corpus.pairs is None:
            raise DataError(f"task = 'classify' trains on pairs files, a label and a text per row, found {corpus.name}")
        if (corpus.source_key, corpus.target_key) == ("source", "target"):  # the defaults
            corpus = replace(corpus, source_key="text", target_key="label")
        return replace(corpus, labelled=True)

    def complete_data_config(self, data: DataConfig, corpora: Iterable[Corpus]) -> DataConfig:
        """Unless `labels` is set, it becomes the labels in the text."""
        check_single_vocabulary(data)
        for name in ("documents", "bpe_dropout"):
            if getattr(data, name):
                raise ConfigError(f"{name} = {getattr(data, name)!r} does not apply to task = 'classify'")
        if data.labels:
            LabelEncoder.from_names(data.labels)
            return data
        labels = LabelEncoder.from_corpus(pair.target for corpus in corpora for pair in read_pairs(corpus))
        return data.model_copy(update={"labels": labels.names})

    def model_settings(self, data: DataConfig) -> dict[str, Any]:
        return {"labels": len(data.labels)}

    def encoders(self, tokenizers: TokenizerPair, data: DataConfig) -> Encoders:
        return Encoders(TextPairEncoder(tokenizers[0]), LabelEncoder(data.labels))

    def sizes(self, pairs: Prepared) -> IntArray:
        """The tokens of each text, EOS included."""
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
        return {"src": batch.src, "src_layout": batch.src_layout}

    def predict(self, model: Transformer, batch: Batch) -> Int[Tensor, "B"]:
        """The most probable label of each text."""
        return model(**self.inputs(batch)).argmax(-1) + FIRST_LABEL_ID

    def validator(
        self, config: RunConfig, _tokenizers: TokenizerPair, held_out: HeldOut, group: ProcessGroup
    ) -> AccuracyValidator:
        return AccuracyValidator(self, self.predict, config, held_out, group)


def _labels(batch: Batch) -> Int[Tensor, "B"]:
    """The label of each text; padding for the sentences of padding, the last of which may be empty."""
    positions = batch.tgt_layout.cu_seqlens[:-1].clamp(max=len(batch.tgt_out) - 1)
    return batch.tgt_out[positions]

"""Masked language modelling: an encoder-only model trained to predict masked tokens (Devlin et al. 2019).

A pre-training task: such a model is a start for whatever an encoder is trained on next. An encoder's texts have no BOS,
so that id is free to be the mask.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from heed.config import DataConfig, RunConfig
from heed.model.layout import Packed
from heed.model.transformer import Transformer
from heed.text.prepare import Encoders
from heed.text.tokenizer import EOS, MASK, PAD, SPECIAL
from heed.training.batches import Batch, Ragged, Random
from heed.training.distributed import ProcessGroup
from heed.training.tasks.base import AccuracyValidator, HeldOut, TextTask, Tokenizers

_MASKED, _REPLACED = 0.8, 0.1  # of the selected tokens; the others stay, so that no visible token can be trusted


class MaskedLMTask(TextTask):
    """Masked-token prediction, with accuracy as its score. share: of the tokens, those selected."""

    kind = "encoder"
    metric = "accuracy"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def __init__(self, share: float = 0.15) -> None:
        self._share = share

    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """One tokenizer, for the text."""
        return Encoders(None, tokenizers[1], chunk_long_texts=data.documents)

    def collate(self, _source: Ragged, target: Ragged, random: Random) -> Batch:
        """Source: the masked text; target: the original token where one is selected, else padding."""
        text, layout = target.with_special(EOS).numpy(), Packed.from_lengths(torch.from_numpy(target.lengths + 1))
        chance = random.random(len(text))
        chance[layout.cu_seqlens[1:].numpy() - 1] = 1.0  # EOS is never selected
        least = np.repeat(np.minimum.reduceat(chance, layout.cu_seqlens[:-1].numpy()), target.lengths + 1)
        selected = (chance < self._share) | ((chance == least) & (chance < 1.0))  # at least one per text
        draw = random.random(len(text))
        other = random.choice(target.ids, len(text)) if len(target.ids) else text
        replaced = np.where(draw < _MASKED, MASK, np.where(draw < _MASKED + _REPLACED, other, text))
        src = torch.from_numpy(np.where(selected, replaced, text))
        tgt_out = torch.from_numpy(np.where(selected, text, PAD))
        return Batch(src, torch.from_numpy(text), tgt_out, layout, layout, int(selected.sum()))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The masked text."""
        return {"src": batch.src, "src_layout": batch.src_layout}

    def predict(self, model: Transformer, batch: Batch) -> Int[Tensor, "N"]:
        """The most probable token at each position."""
        return model(**self.inputs(batch))[:, len(SPECIAL) :].argmax(-1) + len(SPECIAL)

    def validator(
        self, config: RunConfig, _tokenizers: Tokenizers, held_out: HeldOut, group: ProcessGroup
    ) -> AccuracyValidator:
        """Loss and accuracy over the selected tokens, the same ones at every validation."""
        return AccuracyValidator(self, self.predict, config, held_out, group)

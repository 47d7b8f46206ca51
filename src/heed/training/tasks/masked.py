"""The task `masked`: an encoder-only model trained to predict masked tokens (masked LM, Devlin et al. 2019).

A pre-training task: the model initialises an encoder that is then trained on another task. An encoder's texts have no
BOS, so its id serves as the mask token.
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
from heed.text.tokenizer import EOS, MASK, PAD, SPECIAL, TokenizerPair
from heed.training.batches import Batch, Ragged, Random
from heed.training.distributed import ProcessGroup
from heed.training.tasks.base import AccuracyValidator, HeldOut, TextTask

_MASKED, _REPLACED = 0.8, 0.1  # shares of the selected tokens; the rest stays, so that no visible token can be trusted


class MaskedLMTask(TextTask):
    """Masked-token prediction, scored by accuracy. share: of the tokens that are selected for prediction."""

    kind = "encoder"
    metric = "accuracy"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def __init__(self, share: float) -> None:
        self._share = share

    def encoders(self, tokenizers: TokenizerPair, data: DataConfig) -> Encoders:
        return Encoders(None, tokenizers[1], chunk_long_texts=data.documents)

    def collate(self, _source: Ragged, target: Ragged, random: Random) -> Batch:
        """Source: the masked text; target: the original token where it is selected, padding elsewhere."""
        text, layout = target.with_special(EOS).numpy(), Packed.from_lengths(torch.from_numpy(target.lengths + 1))
        draw = random.random(len(text))
        draw[layout.cu_seqlens[1:].numpy() - 1] = 1.0  # EOS is never selected
        lowest = np.repeat(np.minimum.reduceat(draw, layout.cu_seqlens[:-1].numpy()), target.lengths + 1)
        selected = (draw < self._share) | ((draw == lowest) & (draw < 1.0))  # at least one per text
        draw = random.random(len(text))
        random_tokens = random.choice(target.ids, len(text)) if len(target.ids) else text
        replaced = np.where(draw < _MASKED, MASK, np.where(draw < _MASKED + _REPLACED, random_tokens, text))
        src = torch.from_numpy(np.where(selected, replaced, text))
        tgt_out = torch.from_numpy(np.where(selected, text, PAD))
        return Batch(src, torch.from_numpy(text), tgt_out, layout, layout, int(selected.sum()))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {"src": batch.src, "src_layout": batch.src_layout}

    def predict(self, model: Transformer, batch: Batch) -> Int[Tensor, "N"]:
        """The most probable token at each position."""
        return model(**self.inputs(batch))[:, len(SPECIAL) :].argmax(-1) + len(SPECIAL)

    def validator(
        self, config: RunConfig, _tokenizers: TokenizerPair, held_out: HeldOut, group: ProcessGroup
    ) -> AccuracyValidator:
        """Loss and accuracy over the selected tokens, which are the same at every validation."""
        return AccuracyValidator(self, self.predict, config, held_out, group)

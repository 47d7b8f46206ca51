"""Words that were hidden from an encoder, from the words around them (Devlin et al. 2019).

What is learnt this way is of no use by itself, and a good start for whatever an encoder is to learn next. An encoder's
texts have no beginning, so the token that stands for one is free to stand for a hidden word.
"""

from typing import Any, ClassVar, Literal

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
from heed.training.distributed import Team
from heed.training.task import HeldOut, Tokenizers
from heed.training.tasks.tokens import TextTask
from heed.training.validation import AnswerValidator

_HIDDEN, _CHANGED = 0.8, 0.1  # of the tokens that are asked for; the others are left, so that all must be doubted


class Masked(TextTask):
    """Texts with holes. share: of the tokens, those asked for."""

    kind: Literal["encoder"] = "encoder"
    metric = "accuracy"
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def __init__(self, share: float = 0.15) -> None:
        self._share = share

    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """One tokenizer, for the text."""
        return Encoders(None, tokenizers[1], cut=data.documents)

    def collate(self, _source: Ragged, target: Ragged, random: Random) -> Batch:
        """The texts with holes as the source; the target, what was there where something is asked for, else padding."""
        text, layout = target.with_room(EOS).numpy(), Packed.of_lengths(torch.from_numpy(target.lengths + 1))
        chance = random.random(len(text))
        chance[layout.offsets[1:].numpy() - 1] = 1.0  # ends are never asked for
        least = np.repeat(np.minimum.reduceat(chance, layout.offsets[:-1].numpy()), target.lengths + 1)
        asked = (chance < self._share) | ((chance == least) & (chance < 1.0))  # at least one of every text
        fate = random.random(len(text))
        other = random.choice(target.ids, len(text)) if len(target.ids) else text
        seen = np.where(fate < _HIDDEN, MASK, np.where(fate < _HIDDEN + _CHANGED, other, text))
        src = torch.from_numpy(np.where(asked, seen, text))
        tgt_out = torch.from_numpy(np.where(asked, text, PAD))
        return Batch(src, torch.from_numpy(text), tgt_out, layout, layout, int(asked.sum()))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The texts with holes."""
        return {"src": batch.src, "src_layout": batch.src_layout}

    def said(self, model: Transformer, batch: Batch) -> Int[Tensor, "N"]:
        """The word that a model would put at each place."""
        return model(**self.inputs(batch))[:, len(SPECIAL) :].argmax(-1) + len(SPECIAL)

    def validator(self, config: RunConfig, _tokenizers: Tokenizers, held_out: HeldOut, team: Team) -> AnswerValidator:
        """Loss, and how many hidden words are found, with the same holes every time."""
        return AnswerValidator(self, self.said, config, held_out, team)

"""How well a model does on pairs it does not learn from: loss a token, BLEU of greedy translations, one sample.

The processes of a team share the work, unless they share the weights: then all must take part in every pass.
"""

import json
import zlib

import torch

from heed.config import SearchConfig
from heed.decoding.translator import Translator
from heed.evaluation.metrics import bleu
from heed.model.transformer import Transformer
from heed.text.prepare import Prepared
from heed.training.batches import in_order
from heed.training.distributed import Team
from heed.training.loss import smoothed_cross_entropy
from heed.training.material import Material
from heed.training.run import Validation


class Validator:
    """Tries a model on one validation set."""

    def __init__(self, material: Material, pairs: Prepared, team: Team) -> None:
        self._config, self._tokenizers = material.config, material.tokenizers
        self._pairs, self._samples = pairs, material.samples
        self._device = team.device()
        self._team = Team() if material.config.training.shard else team

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """The model's loss, without label smoothing, and its translations' BLEU; another sample at every step."""
        model.eval()
        translations = self._translations(model)
        number = zlib.crc32(str(step).encode()) % len(translations)
        source, reference = self._samples[number]
        score = bleu(translations, [reference for _, reference in self._samples])
        return Validation(self._loss(model), score, (source, reference, translations[number]))

    def _translator(self, model: Transformer) -> Translator:
        return Translator([model], self._tokenizers, SearchConfig(beam=1), self._config.data.max_tokens)

    def _loss(self, model: Transformer) -> float:
        pad_id, budget = self._config.model.pad_id, self._config.training.tokens_per_batch
        own_total, own_tokens = 0.0, 0
        for number, batch in enumerate(in_order(self._pairs, budget)):
            if number % self._team.size == self._team.rank:
                here = batch.to(self._device)
                logits = model(here.src, here.tgt_in, here.src_layout, here.tgt_layout)
                own_total += smoothed_cross_entropy(logits, here.tgt_out, pad_id, 0.0)[0].item()
                own_tokens += batch.tokens
        total, tokens = self._team.add_up(own_total, own_tokens)
        return total / tokens

    def _translations(self, model: Transformer) -> list[str]:
        own = [source for source, _ in self._samples[self._team.rank :: self._team.size]]
        written = self._team.gather(json.dumps(self._translator(model)(own)).encode())
        translations = [""] * len(self._samples)
        for rank, texts in enumerate(written):
            translations[rank :: self._team.size] = json.loads(texts)
        return translations

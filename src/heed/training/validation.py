"""How well a model does on pairs it does not learn from: loss a token, BLEU of greedy translations, one sample."""

from itertools import islice

import torch

from heed.config import RunConfig
from heed.decoding.greedy import greedy
from heed.evaluation.metrics import bleu
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus, read_pairs
from heed.text.prepare import Prepared, Survey
from heed.text.tokenizer import Tokenizer
from heed.training.batches import in_order
from heed.training.loss import smoothed_cross_entropy
from heed.training.trainer import Validation

_TRANSLATED = 1000  # sentences translated for BLEU; the loss is over all
_AT_ONCE = 64


class Validator:
    """Tries a model on one validation set. The sample moves on from validation to validation, by the step."""

    def __init__(
        self,
        corpora: list[tuple[Corpus, Survey]],
        pairs: Prepared,
        tokenizers: tuple[Tokenizer, Tokenizer],
        config: RunConfig,
        device: torch.device,
    ) -> None:
        read = (pair for corpus, _ in corpora for pair in read_pairs(corpus))
        texts = list(islice((pair for pair in read if pair.source and pair.target), _TRANSLATED))
        self._sources, self._references = [pair.source for pair in texts], [pair.target for pair in texts]
        self._pairs = pairs
        self._tokenizers = tokenizers
        self._config = config
        self._device = device
        self._ids = tokenizers[0].encode(self._sources)

    @torch.no_grad()
    def __call__(self, model: Transformer) -> Validation:
        """The model's loss, without label smoothing, and its translations' BLEU."""
        model.eval()
        total, tokens = 0.0, 0
        for batch in (one.to(self._device) for one in in_order(self._pairs, self._config.training.tokens_per_batch)):
            logits = model(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout)
            total += smoothed_cross_entropy(logits, batch.tgt_out, self._config.model.pad_id, 0.0)[0].item()
            tokens += batch.tokens
        translations = self._translate(model)
        number = tokens % len(translations) if translations else 0
        return Validation(
            total / tokens,
            bleu(translations, self._references),
            (self._sources[number], self._references[number], translations[number]),
        )

    def _translate(self, model: Transformer) -> list[str]:
        by_length = sorted(range(len(self._ids)), key=lambda number: len(self._ids[number]))
        translations = [""] * len(self._ids)
        for start in range(0, len(by_length), _AT_ONCE):
            numbers = by_length[start : start + _AT_ONCE]
            written = greedy(model, [self._ids[number] for number in numbers])
            for number, text in zip(numbers, self._tokenizers[1].decode(written), strict=True):
                translations[number] = text
        return translations

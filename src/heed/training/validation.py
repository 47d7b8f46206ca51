"""How well a model does on pairs it does not learn from: loss a token, BLEU of greedy translations, one sample."""

import zlib
from itertools import islice

import torch

from heed.config import RunConfig
from heed.decoding.translator import Translator
from heed.evaluation.metrics import bleu
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus, read_pairs
from heed.text.prepare import Prepared, Survey
from heed.text.tokenizer import Tokenizer
from heed.training.batches import in_order
from heed.training.loss import smoothed_cross_entropy
from heed.training.trainer import Validation

_TRANSLATED = 1000  # sentences translated for BLEU; the loss is over all


class Validator:
    """Tries a model on one validation set."""

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

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """The model's loss, without label smoothing, and its translations' BLEU; another sample at every step."""
        model.eval()
        total, tokens = 0.0, 0
        for batch in (one.to(self._device) for one in in_order(self._pairs, self._config.training.tokens_per_batch)):
            logits = model(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout)
            total += smoothed_cross_entropy(logits, batch.tgt_out, self._config.model.pad_id, 0.0)[0].item()
            tokens += batch.tokens
        translations = Translator(model, self._tokenizers)(self._sources)
        number = zlib.crc32(str(step).encode()) % len(translations)
        return Validation(
            total / tokens,
            bleu(translations, self._references),
            (self._sources[number], self._references[number], translations[number]),
        )

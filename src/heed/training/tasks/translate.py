"""A target for a source: translation, and whatever else turns one sequence into another."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch

from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError
from heed.evaluation.metrics import bleu
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders
from heed.text.sentence_split import Splitter
from heed.training.batches import Batch, Ragged, Random, collate_pairs
from heed.training.distributed import Team
from heed.training.task import HeldOut, Tokenizers, Validation
from heed.training.tasks.tokens import TokenTask
from heed.training.validation import in_shares, mean_loss, number_of_sample, team_for


class Translate(TokenTask):
    """Pairs of sentences."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    metric = "bleu"
    sides = ("source", "target")
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}

    def corpus(self, corpus: Corpus, _data: DataConfig) -> Corpus:
        """Pairs, as they are."""
        if corpus.text is not None:
            raise DataError(f"task = 'translate' learns from --source and --target, or --pairs: found {corpus.name}")
        return corpus

    def settle(self, data: DataConfig, _corpora: Iterable[Corpus]) -> DataConfig:
        """Nothing follows from the text."""
        for name in ("labels", "documents"):
            if getattr(data, name):
                raise ConfigError(f"{name} = {getattr(data, name)!r} is of no use to task = 'translate'")
        return data

    def encoders(self, tokenizers: Tokenizers, _data: DataConfig) -> Encoders:
        """A tokenizer a side."""
        return Encoders(*tokenizers)

    def collate(self, source: Ragged, target: Ragged, random: Random) -> Batch:
        """The source ends, the target begins and ends."""
        return collate_pairs(source, target, random)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Both sides."""
        both = {"src_layout": batch.src_layout, "tgt_layout": batch.tgt_layout}
        return {"src": batch.src, "tgt_in": batch.tgt_in, **both}

    def validator(
        self, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, team: Team
    ) -> "TranslationValidator":
        """Loss, BLEU of greedy translations, one sample."""
        return TranslationValidator(self, config, tokenizers, held_out, team)


class TranslationValidator:
    """Tries a model on one validation set."""

    def __init__(
        self, task: Translate, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, team: Team
    ) -> None:
        self._task, self._config, self._tokenizers, self._held_out = task, config, tokenizers, held_out
        self._team = team_for(config, team)

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """The model's loss, without label smoothing, and its translations' BLEU; another sample at every step."""
        model.eval()
        samples = self._held_out.samples
        greedy = self._config.search.model_copy(update={"beam": 1, "nbest": 1, "sample": False})
        data, lengths = self._config.data, self._held_out.lengths
        translator = Translator(
            [model],
            self._tokenizers,
            greedy,
            data.max_tokens,
            splitter=Splitter(data.max_tokens, lengths, data.source_language),
            settings=self._config.translate,
        )

        def translate(texts: list[str]) -> list[Any]:
            return [(one.text, one.truncated) for one in translator.translate(texts, align=False)]

        found = in_shares([source for source, _ in samples], translate, self._team)
        translations, truncated = [text for text, _ in found], sum(cut_off for _, cut_off in found)
        source, reference = samples[number := number_of_sample(step, samples)]
        score = bleu(translations, [reference for _, reference in samples])
        loss = mean_loss(model, self._task, self._config, self._held_out.pairs, self._team)
        sample = (source, reference, translations[number])
        return Validation(loss, score, sample, outputs=len(found), truncated=truncated)

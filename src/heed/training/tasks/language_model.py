"""The next word of a text: a decoder alone, a language model."""

import math
from typing import Any, ClassVar, Literal

import torch

from heed.config import DataConfig, RunConfig
from heed.inference.generator import Generator
from heed.model.transformer import Transformer
from heed.text.prepare import Encoders
from heed.training.batches import Batch, Ragged, Random, collate_pairs
from heed.training.distributed import Team
from heed.training.task import HeldOut, Tokenizers, Validation
from heed.training.tasks.tokens import TextTask
from heed.training.validation import mean_loss, number_of_sample, team_for


class LanguageModel(TextTask):
    """Texts, from their first word to their end."""

    kind: Literal["decoder"] = "decoder"
    metric = "bits_per_byte"
    # A smoothed target is not the truth, and here it is the truth's probability that counts.
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """One tokenizer, for the target."""
        return Encoders(None, tokenizers[1], cut=data.documents)

    def collate(self, source: Ragged, target: Ragged, random: Random) -> Batch:
        """As of pairs, with sources of no words."""
        return collate_pairs(source, target, random)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The target alone."""
        return {"tgt_in": batch.tgt_in, "tgt_layout": batch.tgt_layout}

    def validator(
        self, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, team: Team
    ) -> "LanguageModelValidator":
        """Loss, bits a byte, and how the model would go on with a text."""
        return LanguageModelValidator(self, config, tokenizers, held_out, team)


class LanguageModelValidator:
    """Tries a model on one validation set."""

    def __init__(
        self, task: LanguageModel, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, team: Team
    ) -> None:
        self._task, self._config, self._tokenizers, self._held_out = task, config, tokenizers, held_out
        self._team = team_for(config, team)
        pairs = held_out.pairs
        texts = tokenizers[1].decode([pairs.target[number].tolist() for number in range(len(pairs))])
        tokens = len(pairs.target.ids) + len(texts)
        # The end of a text counts as one byte: in its file it has a line end.
        self._bits = tokens / (sum(len(text.encode()) for text in texts) + len(texts)) / math.log(2)  # a byte, of a nat

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """The loss, and another text to go on with at every step."""
        model.eval()
        loss = mean_loss(model, self._task, self._config, self._held_out.pairs, self._team)
        samples = self._held_out.samples
        _, text = samples[number_of_sample(step, samples)]
        prompt = text[: len(text) // 3]
        greedy = self._config.search.model_copy(update={"beam": 1, "nbest": 1, "sample": False})
        generator = Generator(model, self._tokenizers[1], greedy, self._config.data.max_tokens)
        (found,) = generator.generate([prompt])
        return Validation(loss, loss * self._bits, (prompt, text, found[0].text), self._task.metric)

"""The task `language-model`: a decoder-only model trained to predict the next token."""

import math
from typing import Any, ClassVar

import torch

from heed.config import DataConfig, RunConfig
from heed.inference.generator import Generator
from heed.model.transformer import Transformer
from heed.text.prepare import Encoders
from heed.text.tokenizer import TokenizerPair
from heed.training.batches import Batch
from heed.training.distributed import ProcessGroup
from heed.training.step_log import Validation
from heed.training.tasks.base import HeldOut, TextTask, mean_loss, sample_index, validation_group


class LanguageModelTask(TextTask):
    """Next-token prediction, scored by bits per byte."""

    kind = "decoder"
    metric = "bits_per_byte"
    # No label smoothing: it would bias the probabilities, which are what the score measures.
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"training": {"label_smoothing": 0.0}, "model": {"dropout": 0.1}}

    def encoders(self, tokenizers: TokenizerPair, data: DataConfig) -> Encoders:
        return Encoders(None, tokenizers[1], chunk_long_texts=data.documents)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {"tgt_in": batch.tgt_in, "tgt_layout": batch.tgt_layout}

    def validator(
        self, config: RunConfig, tokenizers: TokenizerPair, held_out: HeldOut, group: ProcessGroup
    ) -> "LanguageModelValidator":
        return LanguageModelValidator(self, config, tokenizers, held_out, group)


class LanguageModelValidator:
    """Validates a language model by loss and bits per byte, and shows a continuation of a text."""

    def __init__(
        self,
        task: LanguageModelTask,
        config: RunConfig,
        tokenizers: TokenizerPair,
        held_out: HeldOut,
        group: ProcessGroup,
    ) -> None:
        self._task, self._config, self._tokenizers, self._held_out = task, config, tokenizers, held_out
        self._group = validation_group(config, group)
        pairs = held_out.pairs
        texts = tokenizers[1].decode([pairs.target[index].tolist() for index in range(len(pairs))])
        tokens = len(pairs.target.ids) + len(texts)
        size = sum(len(text.encode()) for text in texts) + len(texts)  # EOS counts as one byte: a file has a line end
        self._bits_per_byte = tokens / size / math.log(2)  # per nat per token

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """The sample is a greedy continuation of a text that changes with the step."""
        model.eval()
        loss = mean_loss(model, self._task, self._config, self._held_out.pairs, self._group)
        samples = self._held_out.samples
        _, text = samples[sample_index(step, samples)]
        prompt = text[: len(text) // 3]
        generator = Generator(model, self._tokenizers[1], self._config.search.greedy(), self._config.data.max_tokens)
        (continuations,) = generator.generate([prompt])
        return Validation(loss, loss * self._bits_per_byte, (prompt, text, continuations[0].text), self._task.metric)

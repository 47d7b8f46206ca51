"""The task `translate`: an encoder-decoder trained on pairs, for translation or any other sequence-to-sequence task."""

from collections.abc import Iterable
from typing import Any

import torch

from heed.backends.select import inference_backend
from heed.config import DataConfig, RunConfig
from heed.decoding.engine import Engine
from heed.errors import ConfigError, DataError
from heed.evaluation.metrics import bleu
from heed.evaluation.repetition import repeats_itself
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders
from heed.text.sentence_split import Splitter
from heed.text.tokenizer import TokenizerPair
from heed.training.batches import Batch
from heed.training.distributed import ProcessGroup
from heed.training.step_log import Validation
from heed.training.tasks.base import (
    HeldOut,
    Task,
    distributed_map,
    mean_loss,
    sample_index,
    validation_group,
)


class TranslationTask(Task):
    """Sequence to sequence, scored by BLEU."""

    kind = "encoder-decoder"
    metric = "bleu"
    sides = ("source", "target")

    def corpus(self, corpus: Corpus, _data: DataConfig) -> Corpus:
        if corpus.text is not None:
            raise DataError(
                f"task = 'translate' trains on source and target files, or pairs, found {corpus.name}; for monolingual "
                "text use --task language-model or --task masked"
            )
        return corpus

    def complete_data_config(self, data: DataConfig, _corpora: Iterable[Corpus]) -> DataConfig:
        for name in ("labels", "documents"):
            if getattr(data, name):
                raise ConfigError(f"{name} = {getattr(data, name)!r} does not apply to task = 'translate'")
        return data

    def encoders(self, tokenizers: TokenizerPair, _data: DataConfig) -> Encoders:
        return Encoders(*tokenizers)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        layouts = {"src_layout": batch.src_layout, "tgt_layout": batch.tgt_layout}
        return {"src": batch.src, "tgt_in": batch.tgt_in, **layouts}

    def validator(
        self, config: RunConfig, tokenizers: TokenizerPair, held_out: HeldOut, group: ProcessGroup
    ) -> "TranslationValidator":
        return TranslationValidator(self, config, tokenizers, held_out, group)


class TranslationValidator:
    """Validates a translation model by loss and BLEU, and shows a translation."""

    def __init__(
        self,
        task: TranslationTask,
        config: RunConfig,
        tokenizers: TokenizerPair,
        held_out: HeldOut,
        group: ProcessGroup,
    ) -> None:
        self._task, self._config, self._tokenizers, self._held_out = task, config, tokenizers, held_out
        self._group = validation_group(config, group)

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> Validation:
        """BLEU is of greedy translations; the sample is one of them and changes with the step."""
        model.eval()
        samples = self._held_out.samples
        data, lengths = self._config.data, self._held_out.lengths
        translator = Translator(
            [model],
            self._tokenizers,
            self._config.search.greedy(),
            data.max_tokens,
            engine=Engine(inference_backend([model], whole_search=False)),
            splitter=Splitter(data.max_tokens, lengths, data.source_language),
            settings=self._config.translate,
        )

        def translate(texts: list[str]) -> list[Any]:
            translations = translator.translate(texts, align=False)
            return [(translation.text, translation.truncated) for translation in translations]

        results = distributed_map([source for source, _ in samples], translate, self._group)
        translations, truncated = [text for text, _ in results], sum(is_truncated for _, is_truncated in results)
        source, reference = samples[index := sample_index(step, samples)]
        references = [reference for _, reference in samples]
        score = bleu(translations, references)
        exact = sum(text.strip() == reference.strip() for text, reference in zip(translations, references, strict=True))
        repetitive = sum(map(repeats_itself, translations, references))
        loss = mean_loss(model, self._task, self._config, self._held_out.pairs, self._group)
        sample = (source, reference, translations[index])
        counts = {"outputs": len(results), "truncated": truncated, "repetitive": repetitive, "exact": exact}
        return Validation(loss, score, sample, **counts)

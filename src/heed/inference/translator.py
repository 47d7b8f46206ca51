"""The `Translator`: texts to translations, scores, alternatives, streams and traces.

Enters: texts. Leaves: their translations, in the same order. Sentences of similar length are batched; white space is
kept; a text longer than the training texts is split into sentences, and their translations are joined as the sentences
were.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from heed.backends.protocol import Backend, Hypothesis, SearchMonitor
from heed.decoding.alignment import AlignmentMatrix, argmax_alignment
from heed.decoding.engine import Engine, max_output_lengths
from heed.errors import InputError
from heed.inference.batching import batches_by_length
from heed.inference.lazy_models import LazyModels, backend_of
from heed.inference.translation import Translation, join_translations, restored, space_before, stream_segment
from heed.model.torch_state import generate_with_torch_defaults, torch_defaults
from heed.search_config import SearchConfig, SplitMode, TranslateConfig
from heed.text.normalization import NormalizedText, Normalizer
from heed.text.sentence_split import Splitter, TextSegment
from heed.text.tokenizer import TokenizerPair, check_texts

if TYPE_CHECKING:
    import heed.interpret.trace
    import heed.model.transformer

ProgressCallback = Callable[[int, int], None]  # segments translated, segments in total
_SENTENCE_ID_STRIDE = 1 << 40  # added to the sentence id of a text for each further segment: ids of texts stay below it


class Translator:
    """A model, or an ensemble, with its tokenizers: call it with a text or a list of texts.

    models: may be built later, if `engine` needs none of them. engine: runs the search; none: the backend that `select`
    chooses for the models. With the engine of another system there may be no models, and only translation is supported.
    splitter: splits long texts; none: at every sentence end.
    normalizer: changes texts that are written unlike the training text; none: no text is changed.
    """

    def __init__(
        self,
        models: "Sequence[heed.model.transformer.Transformer] | LazyModels",
        tokenizers: TokenizerPair,
        search: SearchConfig | None = None,
        max_tokens: int = 256,
        engine: Engine | None = None,
        splitter: Splitter | None = None,
        settings: TranslateConfig | None = None,
        normalizer: Normalizer | None = None,
    ) -> None:
        self._models = models if isinstance(models, LazyModels) else list(models)
        self.tokenizers = tokenizers
        self.search = search or SearchConfig()
        self.max_tokens = max_tokens
        self.splitter = splitter or Splitter(max_tokens)
        self.settings = settings or TranslateConfig()
        self.normalizer = normalizer or Normalizer()
        self.engine = engine or Engine(backend_of(self._built_models()))

    @property
    def backend(self) -> Backend:
        """The backend that runs the model; its `choice` has the reason."""
        return self.engine.backend

    @property
    def models(self) -> "list[heed.model.transformer.Transformer]":
        """The models; an exported model has none.

        From the first use on they also translate, so that changes of them take effect.
        """
        models, lazy = self._built_models(), self._models
        if isinstance(lazy, LazyModels):  # read once: another thread may replace them
            self.engine, self._models = Engine(lazy.backend()), models
        return models

    def _built_models(self) -> "list[heed.model.transformer.Transformer]":
        """The models, to be used but not handed out."""
        models = built() if isinstance(built := self._models, LazyModels) else built
        if not models:
            raise InputError(
                "an exported model only translates: to score, align, stream, get alternatives or look inside, load the "
                "model folder it was exported from"
            )
        return models

    @property
    def model(self) -> "heed.model.transformer.Transformer":
        """The model; of an ensemble, the first."""
        return self.models[0]

    @overload
    def __call__(self, texts: str) -> str: ...

    @overload
    def __call__(self, texts: list[str]) -> list[str]: ...

    def __call__(self, texts: str | list[str]) -> str | list[str]:
        """The translation of each text."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [translation.text for translation in self.translate(texts, align=False)]

    def translate(  # noqa: PLR0913 - options of one call
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int | None = None,
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        align: bool = True,
        split: SplitMode | None = None,
        first: int = 0,
        report: ProgressCallback | None = None,
    ) -> list[Translation]:
        """The translation of each text with its score, tokens and alignment.

        search: search settings, instead of the model folder's; beam, length_penalty and nbest override them. prefixes:
        the forced beginning of each translation. align: False saves the forward pass that alignment takes. split: how
        texts are split, instead of the model folder's setting. first: the index of the first text within a longer
        input: the index of a text seeds its samples. report: called with the number of segments done and in total.
        """
        overrides = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest}
        settings = (search or self.search).model_dump() | {
            name: value for name, value in overrides.items() if value is not None
        }
        config = SearchConfig.model_validate(settings)
        segments_by_text = self._split(texts, prefixes, split)
        segment_texts = [segment.text for segments in segments_by_text for segment in segments if segment.text]
        sentence_ids = [
            first + text + _SENTENCE_ID_STRIDE * index
            for text, segments in enumerate(segments_by_text)
            for index, _ in enumerate(segment for segment in segments if segment.text)
        ]
        prefix_ids = None
        if prefixes is not None:
            pairs = zip(prefixes, segments_by_text, strict=True)
            prefix_per_segment = [prefix for prefix, segments in pairs for segment in segments if segment.text]
            prefix_ids = self.tokenizers[1].encode(prefix_per_segment)
        translations = self.translate_segments(
            segment_texts, config, prefix_ids, align=align, sentence_ids=sentence_ids, report=report
        )
        results = iter(translations)
        return [
            join_translations([next(results) if segment.text else None for segment in segments], segments)
            for segments in segments_by_text
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target, eos included, as the translation of its source."""
        return [sum(tokens) for tokens in self.token_scores(sources, targets)]

    def token_scores(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of each target, and of eos."""
        models = self._built_models()
        from heed.decoding.forced_decoding import token_log_probs  # noqa: PLC0415 - torch takes seconds to import

        ids = self.tokenizers[0].encode(sources), self.tokenizers[1].encode(targets)
        if len(sources) != len(targets):
            raise InputError(f"found {len(sources)} sources and {len(targets)} targets: expected as many of each")
        scores: list[list[float]] = [[] for _ in sources]
        lengths = [len(source) + len(target) + 2 for source, target in zip(*ids, strict=True)]
        for indices in self._batches(lengths, beam=1, budget=self.search.tokens_per_batch):
            batch = [[side[index] for index in indices] for side in ids]
            for index, log_probs in zip(indices, token_log_probs(models, *batch), strict=True):
                scores[index] = log_probs
        return scores

    @generate_with_torch_defaults
    def stream(self, text: str, prefix: str = "", split: SplitMode | None = None) -> Generator[str, None, bool]:
        """Yield the greedy translation of one text as it is decoded; concatenated, it is the translation.

        Returns whether the length limit truncated any of it.
        """
        written, truncated = "", False
        for segment in self._split([text], None if not prefix else [prefix], split)[0]:
            if before := space_before(segment, written) + segment.before:
                yield before
            if segment.text:
                written, was_truncated = yield from stream_segment(
                    self._stepwise_backend, self.tokenizers, self.search, self._normalized(segment.text, prefix), prefix
                )
                truncated = truncated or was_truncated
            if segment.after:
                yield segment.after
        return truncated

    @torch_defaults()
    def alternatives(
        self, text: str, prefix: str, count: int = 5, monitor: SearchMonitor | None = None
    ) -> list[Translation]:
        """Translations that begin with `prefix` and differ in the token after it, the most probable token first."""
        self._split([text], [prefix], "line")
        source, target = self.tokenizers
        (ids,), (prefix_ids,) = source.encode([text]), target.encode([prefix])
        (max_length,) = max_output_lengths(self.backend.configs, [ids], self.search)
        if len(prefix_ids) >= max_length:  # refused before the decoder steps that the prefix takes
            raise InputError(
                f"the prefix has {len(prefix_ids)} tokens: expected fewer than {max_length}, the limit for this "
                "translation"
            )
        start = self._stepwise_backend.start([ids])
        newest, state = start.first, start.state
        for token in prefix_ids:
            if monitor is not None:
                monitor.before_step()
            _, state = start.step(newest, state)
            newest = newest.new_full((1,), token)
        log_probs, _ = start.step(newest, state)
        log_probs[:, start.eos_id] = -math.inf
        next_tokens = log_probs[0].topk(min(count, log_probs.shape[-1] - 3)).indices.tolist()
        prefixes = [[*prefix_ids, token] for token in next_tokens]
        config = self.search.model_copy(update={"nbest": 1})
        return self.translate_segments([text] * len(prefixes), config, prefixes, align=True, monitor=monitor)

    def look(self, source: str, target: str | None = None) -> "heed.interpret.trace.Trace":
        """The trace of the forward pass over a text and a target, by default its translation: every activation."""
        models = self.models
        from heed.interpret.tokens import TextModel  # noqa: PLC0415 - torch takes seconds to import
        from heed.interpret.trace import look  # noqa: PLC0415

        text_model = TextModel.only(models, self.tokenizers, self.search, self.max_tokens)

        def translate(text: str) -> Sequence[int]:
            return self.translate([text], nbest=1, align=False, split="line")[0].ids

        return look(text_model, source, target, translate)

    def segments(self, text: str, split: SplitMode | None = None) -> list[TextSegment]:
        """Split a text into the segments that are translated one by one."""
        return self.splitter.split(text, split or self.settings.split, self._token_counts)

    @property
    def _stepwise_backend(self) -> Backend:
        """The backend, or one of the models' own if it only runs whole searches."""
        models = self._built_models()
        return self.backend if self.backend.can_step else backend_of(models)

    def _token_counts(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizers[0].encode([self._normalized(text, None).text for text in texts])]

    def _normalized(self, text: str, prefix: object) -> NormalizedText:
        """The text as it is translated; with a prefix, which is in the case of the translation, unchanged."""
        if prefix:
            return NormalizedText(text)
        return self.normalizer(text, style=self.settings.normalize, spelling=self.settings.correct_spelling)

    def _split(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, split: SplitMode | None = None
    ) -> list[list[TextSegment]]:
        check_texts(texts)
        segments_by_text = [self.segments(text, split) for text in texts]
        if prefixes is not None:
            check_texts(prefixes)
            if len(prefixes) != len(texts):
                raise InputError(f"found {len(prefixes)} prefixes for {len(texts)} texts: expected one each")
            for text, segments in zip(texts, segments_by_text, strict=True):
                if len([segment for segment in segments if segment.text]) != 1:
                    raise InputError(
                        "a prefix needs a text that is not split (one line, of one sentence unless split='line'), "
                        f"found {text[:50]!r}"
                    )
        return segments_by_text

    @torch_defaults()
    def translate_segments(
        self,
        texts: Sequence[str],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        align: bool,
        monitor: SearchMonitor | None = None,
        sentence_ids: Sequence[int] | None = None,
        report: ProgressCallback | None = None,
    ) -> list[Translation]:
        """Translate short, non-empty texts, in batches of similar length; prefixes are token ids.

        sentence_ids: seed sampling, and name the texts to `monitor`; none: their indices.
        """
        begun = prefixes or [()] * len(texts)
        normalized = [self._normalized(text, prefix) for text, prefix in zip(texts, begun, strict=True)]
        ids = self.tokenizers[0].encode([text.text for text in normalized])
        results: list[Translation | None] = [None] * len(texts)
        beam, done = config.nbest if config.sample else config.beam, 0
        for indices in self._batches([len(sequence) + 1 for sequence in ids], beam, config.tokens_per_batch):
            batch = [ids[index] for index in indices]
            batch_prefixes = None if prefixes is None else [prefixes[index] for index in indices]
            batch_ids = indices if sentence_ids is None else [sentence_ids[index] for index in indices]
            hypotheses = self.engine.search(batch, config, batch_ids, batch_prefixes, monitor)
            for index, translation in zip(indices, self._translations(batch, hypotheses, align=align), strict=True):
                results[index] = restored(translation, normalized[index])
            done += len(indices)
            if report is not None:
                report(done, len(texts))
        return [translation for translation in results if translation is not None]

    def _translations(
        self, sources: Sequence[Sequence[int]], results: list[list[Hypothesis]], *, align: bool
    ) -> Iterator[Translation]:
        source, target = self.tokenizers
        pairs = [
            (ids, hypothesis.ids) for ids, hypotheses in zip(sources, results, strict=True) for hypothesis in hypotheses
        ]
        weights = iter(self._alignments(pairs) if align else [[] for _ in pairs])
        for ids, hypotheses in zip(sources, results, strict=True):
            texts = target.decode([hypothesis.ids for hypothesis in hypotheses])
            source_tokens = tuple(source.tokens(ids))
            best, *alternatives = (
                Translation(
                    text,
                    hypothesis.score,
                    hypothesis.log_prob,
                    hypothesis.ids,
                    tuple(target.tokens(hypothesis.ids)),
                    source_tokens,
                    tuple(argmax_alignment(next(weights))),
                    truncated=hypothesis.truncated,
                )
                for hypothesis, text in zip(hypotheses, texts, strict=True)
            )
            yield replace(best, alternatives=tuple(alternatives))

    def _alignments(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[AlignmentMatrix]:
        model, *_ = self._built_models()
        from heed.decoding.forced_decoding import alignment_matrices  # noqa: PLC0415 - torch takes seconds to import

        return alignment_matrices(model, *zip(*pairs, strict=True))

    def _batches(self, lengths: Sequence[int], beam: int, budget: int | None) -> Iterator[list[int]]:
        return batches_by_length(lengths, max(1, (budget or self.backend.tokens_per_batch) // beam))

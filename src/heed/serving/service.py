"""Translates the texts of one request: detects languages, parses HTML, splits long texts and queues batch jobs.

Knows nothing of HTTP but the `HttpError` it may raise. Nothing here blocks the event loop: sentence splitting and
tokenisation of all but short texts run in threads, models in the batcher's threads.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from heed.backends.protocol import CPU_TOKENS, GPU_TOKENS, SearchMonitor
from heed.backends.select import default_device
from heed.errors import InputError
from heed.inference.translation import Translation, join_translations
from heed.inference.translator import Translator
from heed.interpret.report import html_report
from heed.interpret.saving import rounded, trace_document
from heed.search_config import SearchConfig, SplitMode
from heed.serving import markup
from heed.serving.batcher import Batcher, CancelToken, Job
from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError
from heed.serving.jobs import BetweenSteps, TranslationJobType
from heed.serving.languages import AUTO
from heed.serving.limits import Admission
from heed.serving.models import Directions, ServedLmOrClassifier, ServedModel, ServedTranslator, inference_threads
from heed.serving.requests import AlternativesRequest, LookRequest, StreamRequest, TranslateRequest
from heed.serving.responses import StreamOutcome
from heed.text.sentence_split import TextSegment
from heed.text.spelling import Correction

T = TypeVar("T")
_NEVER = sys.maxsize  # decoding steps: a batch of one request is cancelled as a whole, not sentence by sentence
_SHORT = 200  # characters: texts that are split and tokenised on the event loop


@dataclass(frozen=True)
class TranslatedText:
    """The translation of one text of a request."""

    text: str
    alternatives: list[str]
    language: tuple[str, float]  # source language and confidence in percent
    translation: Translation | None = None  # None: source and target language are the same, or it was HTML
    truncated: bool = False  # some of it ended at the length limit
    normalized: bool = False  # case, spaces or final stop of some of it were changed before translation
    corrections: tuple[Correction, ...] = ()  # misspelt words that were replaced before translation


class Service:
    """The served models, and the batchers whose threads run them."""

    def __init__(
        self, directions: Directions, config: ServeConfig, lms_and_classifiers: Sequence[ServedLmOrClassifier] = ()
    ) -> None:
        self.directions, self.config, self.lms_and_classifiers = directions, config, list(lms_and_classifiers)
        self.admission = Admission(config.queue, config.deadline)
        by_device = GPU_TOKENS if default_device().type == "cuda" else CPU_TOKENS
        by_backend = [served.translator.backend.tokens_per_batch for served in directions.served]
        self._budget = config.tokens_per_batch or min([by_device, *by_backend])
        threads = 1 if lms_and_classifiers else inference_threads(directions.served)
        max_delay = config.patience if threads == 1 else 0.0  # what arrives meanwhile is the next thread's batch
        self.batcher = Batcher(max_delay=max_delay, budget=self._budget, batching=config.batching, threads=threads)
        self._trace_batcher = Batcher(max_delay=0.0, budget=self._budget)  # traces are slow: a thread of their own

    @property
    def models(self) -> list[ServedModel]:
        return [*self.directions.served, *self.lms_and_classifiers]

    def require(self, route: str) -> None:
        """Raise a 404 if no served model supports a route."""
        if not any(route in model.routes for model in self.models):
            raise HttpError(404, f"No served model supports /{route}. {self.supported_routes()}")

    def supported_routes(self) -> str:
        """The routes of each model, as a sentence for error messages."""
        by_model = (f"{model.name}: {', '.join(f'/{route}' for route in model.routes)}" for model in self.models)
        return f"Supported: {'; '.join(by_model)}"

    async def translate(self, request: TranslateRequest, cancel_token: CancelToken) -> list[TranslatedText]:
        texts = [request.q] if isinstance(request.q, str) else request.q
        routes = [self.route(text, request.source, request.target) for text in texts]
        documents = None
        prose = [[text] for text in texts]
        if request.format == "html":
            documents = await asyncio.to_thread(lambda: [markup.split_html(text) for text in texts])
            prose = [[segment.text for segment in segments if segment.text is not None] for segments in documents]
        translated = await asyncio.gather(
            *(
                self._translations(segments, model, request, cancel_token)
                for segments, (model, _) in zip(prose, routes, strict=True)
            )
        )
        answers = []
        for number, (model, language) in enumerate(routes):
            translations = translated[number]
            truncated = any(translation.truncated for translation in translations)
            normalized = any(translation.normalized for translation in translations)
            if documents is None:
                (best,) = translations
                translation = None if model is None else best
                text, others = best.text, [alternative.text for alternative in best.alternatives]
            else:
                translation = None
                text, *others = (markup.join_html(documents[number], rank) for rank in _ranks(translations))
            corrections = tuple(chain.from_iterable(translation.corrections for translation in translations))
            flags = truncated, normalized, corrections
            answers.append(TranslatedText(text, _distinct(text, others), language, translation, *flags))
        return answers

    def route(self, text: str, source: str, target: str) -> tuple[ServedTranslator | None, tuple[str, float]]:
        """The model for a text (None: the text is in the target language already), and the text's language."""
        source, target = self._served_code(source), self._served_code(target)
        if target == AUTO:
            raise HttpError(400, f"{AUTO} is not supported")
        language = (source, 100.0)
        if source == AUTO:
            detected = self.directions.detect(text, self.directions.sources(target))
            if detected is None:
                raise HttpError(
                    400, "auto is not supported: these models have no language profiles to detect the language with"
                )
            language = detected
        try:
            return self.directions.translator_for(language[0], target), language
        except KeyError:
            raise HttpError(400, f"{target} is not available as a target language from {language[0]}") from None

    def _served_code(self, requested: str) -> str:
        if (code := self.directions.code_of(requested)) is None:
            raise HttpError(400, f"{requested[:50]} is not supported")
        return code

    async def _translations(
        self, texts: list[str], model: ServedTranslator | None, request: TranslateRequest, cancel_token: CancelToken
    ) -> list[Translation]:
        if model is None:
            return [Translation(text, 0.0, 0.0, (), (), (), ()) for text in texts]
        split = await self._split(texts, model, request.split)
        job_type = TranslationJobType(model.translator, self._search(model, request.alternatives), request.details)
        jobs: list[Job[Translation]] = []
        for segments, lengths in split:
            texts_to_run = [segment.text for segment in segments if segment.text]
            jobs += [
                Job(cancel_token, length, job_type, text) for text, length in zip(texts_to_run, lengths, strict=True)
            ]
        results = iter(await self.run_jobs(jobs))
        return [
            join_translations([next(results) if segment.text else None for segment in segments], segments)
            for segments, _ in split
        ]

    async def _split(
        self, texts: Sequence[str], model: ServedTranslator, split: SplitMode | None
    ) -> list[tuple[list[TextSegment], list[int]]]:
        """Each text as sentence-split segments, with the lengths in tokens of the non-empty ones."""

        def segments() -> list[tuple[list[TextSegment], list[int]]]:
            return [_segments(text, model.translator, split) for text in texts]

        with input_errors_as_400():
            if sum(map(len, texts)) <= _SHORT:  # which takes less time than a call in another thread
                return segments()
            return await asyncio.to_thread(segments)

    def _search(self, model: ServedTranslator, alternatives: int) -> SearchConfig:
        """The model's search settings, with a beam wide enough for the alternatives; batches are not split again."""
        nbest = alternatives + 1
        search = model.translator.search
        beam = max(search.beam, nbest)
        return search.model_copy(update={"nbest": nbest, "beam": beam, "tokens_per_batch": self._budget})

    async def run_jobs(self, jobs: Sequence[Job[T]], batcher: Batcher | None = None) -> list[T]:
        """Queue jobs and wait for their results, in order."""
        (batcher or self.batcher).submit(jobs)
        return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))

    async def run_call(
        self, cancel_token: CancelToken, length: int, call: Callable[[BetweenSteps], T], batcher: Batcher | None = None
    ) -> T:
        """Run a function that is not batched in an inference thread. length: its estimated cost, in tokens."""
        with input_errors_as_400():
            (result,) = await self.run_jobs([Job(cancel_token, length, call=call)], batcher)
        return result

    async def stream(
        self, request: StreamRequest, model: ServedTranslator, cancel_token: CancelToken, outcome: StreamOutcome
    ) -> AsyncGenerator[str]:
        """Yield the greedy translation as it is decoded; the deadline counts from here."""
        end = self.deadline()
        ((_, lengths),) = await self._split([request.q], model, request.split)

        def translate(between_steps: BetweenSteps) -> Generator[str, None, bool]:
            stream = model.translator.stream(request.q, split=request.split)
            try:
                while True:
                    yield next(stream)
                    between_steps()
            except StopIteration as stop:
                return bool(stop.value)

        async with aclosing(self.stream_call(cancel_token, sum(lengths) + 1, translate, end, outcome)) as chunks:
            async for text in chunks:
                yield text

    def deadline(self) -> float:
        """The deadline of a request that begins now, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self.admission.deadline

    async def stream_call(
        self,
        cancel_token: CancelToken,
        length: int,
        texts: Callable[[BetweenSteps], Generator[str, None, bool]],
        end: float,
        outcome: StreamOutcome,
    ) -> AsyncGenerator[str]:
        """Yield what a generator yields that runs in an inference thread.

        texts: makes the generator; its argument must be called between decoding steps. The generator's return value is
        whether it ended at the length limit.
        """
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def call(between_steps: BetweenSteps) -> None:
            def all_texts() -> Generator[str]:
                outcome.truncated = yield from texts(between_steps)

            try:
                for text in all_texts():
                    loop.call_soon_threadsafe(chunks.put_nowait, text)
            finally:
                loop.call_soon_threadsafe(chunks.put_nowait, None)

        running = asyncio.ensure_future(self.run_call(cancel_token, length, call))
        running.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (text := await self._until(end, chunks.get())) is not None:
                yield text
            await self._until(end, running)
        finally:
            running.cancel()

    async def _until(self, end: float, result: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(end):
                return await result
        except TimeoutError:
            raise self.admission.deadline_error() from None

    async def alternatives(
        self, request: AlternativesRequest, model: ServedTranslator, cancel_token: CancelToken
    ) -> list[Translation]:
        """Translations with a forced prefix and different tokens after it."""
        translator, prefix = model.translator, request.prefix
        if translator.tokenizers[1].kind not in ("characters", "bytes"):  # other tokens include the space before them
            prefix = prefix.rstrip()
        ((_, lengths),) = await self._split([request.q], model, "line")
        (prefix_ids,) = await asyncio.to_thread(translator.tokenizers[1].encode, [prefix])
        count = self.config.alternatives if request.alternatives is None else request.alternatives

        def call(between_steps: BetweenSteps) -> list[Translation]:
            return translator.alternatives(request.q, prefix, max(1, count), cancel_whole_request(between_steps))

        return await self.run_call(cancel_token, sum(lengths) + len(prefix_ids) + 1, call)

    async def look(self, request: LookRequest, model: ServedModel, cancel_token: CancelToken) -> bytes:
        """Trace a sentence: the JSON of `heed.interpret.saving` with the requested parts, or the HTML report."""
        length = await asyncio.to_thread(model.tokens, request.q, request.translation)
        if length > self.config.look_tokens:
            raise HttpError(
                400,
                f"Invalid request: {length} tokens exceed the limit of {self.config.look_tokens} for a trace",
            )

        def call(_: BetweenSteps) -> bytes:
            trace = model.trace(request.q, request.translation)
            contents: dict[str, Any] = trace_document(trace)
            if request.format == "html":
                return html_report(trace, contents)
            if request.parts:
                names = trace.names()
                for name in request.parts:
                    if name not in names:
                        raise InputError(f"unknown part {name[:50]!r}")
                contents["values"] = {name: rounded(part.values) for name, part in trace.parts(request.parts).items()}
            return json.dumps(contents, ensure_ascii=False, allow_nan=False).encode()

        return await self.run_call(cancel_token, length, call, self._trace_batcher)

    @property
    def alive(self) -> bool:
        return self.batcher.alive and self._trace_batcher.alive

    def close(self) -> None:
        self.batcher.close()
        self._trace_batcher.close()


@contextmanager
def input_errors_as_400() -> Iterator[None]:
    """Turn an `InputError` into a 400, where it can only be due to the request."""
    try:
        yield
    except InputError as error:
        raise HttpError(400, f"Invalid request: {error}") from None


def cancel_whole_request(between_steps: BetweenSteps) -> SearchMonitor:
    """Cancellation of a search that serves a single request: `between_steps` raises to cancel all of it."""
    return SearchMonitor(lambda _: False, between_steps, _NEVER)


def _segments(text: str, translator: Translator, split: SplitMode | None) -> tuple[list[TextSegment], list[int]]:
    """Split a text, with the token counts of non-empty segments; segments without letters count as white space."""
    segments = [
        segment
        if has_letters(segment.text)
        else TextSegment(segment.before + segment.text + segment.after, "", "", segment.no_space_before)
        for segment in translator.segments(text, split)
    ]
    encoded = translator.tokenizers[0].encode([segment.text for segment in segments if segment.text])
    return segments, [len(ids) for ids in encoded]


def has_letters(text: str) -> bool:
    """Whether there is anything to translate: numbers, punctuation and emoji stay as they are."""
    return any(character.isalpha() for character in text)


def _distinct(best: str, texts: Sequence[str]) -> list[str]:
    """Alternatives that differ from the best and from each other: two token sequences can spell the same text."""
    return [text for text in dict.fromkeys(texts) if text != best]


def _ranks(translations: Sequence[Translation]) -> list[list[str]]:
    """The best of each segment, then the second best of each, as far as every segment has one."""
    depth = min((len(best.alternatives) for best in translations), default=0)
    return [[(best, *best.alternatives)[rank].text for best in translations] for rank in range(depth + 1)]

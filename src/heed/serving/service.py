"""Translates the texts of one request: detects languages, parses HTML, splits long texts and queues batch jobs.

Knows nothing of HTTP but the `HttpError` it may raise. Nothing here blocks the event loop: sentence splitting and
tokenisation run in threads, models in the batcher's thread.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from heed.backends.base import SearchMonitor
from heed.backends.select import default_device
from heed.config import SearchConfig, SplitMode
from heed.errors import InputError
from heed.inference.translation import Translation, join_translations
from heed.inference.translator import Translator
from heed.interpret.report import html_report
from heed.interpret.saving import rounded, trace_document
from heed.serving import markup
from heed.serving.batcher import Batcher, CancelToken, Job
from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError
from heed.serving.jobs import BetweenSteps, TranslationJobType
from heed.serving.languages import AUTO
from heed.serving.limits import Admission
from heed.serving.models import Directions, ServedLmOrClassifier, ServedModel, ServedTranslator
from heed.serving.requests import Alternatives, Look, Stream, Translate
from heed.serving.responses import Outcome
from heed.text.sentence_split import TextSegment

T = TypeVar("T")
_NEVER = sys.maxsize  # steps: a batch of one request is cancelled as a whole, and not sentence by sentence
_TOKENS_ON_CPU, _TOKENS_ON_GPU = 4096, 65_536  # per batch


@dataclass(frozen=True)
class Answer:
    """The translation of one text of a request."""

    text: str
    alternatives: list[str]
    language: tuple[str, float]  # the text's own, and the confidence
    translation: Translation | None = None  # None: its language was the target's, or it was HTML
    truncated: bool = False  # the length limit ended some of it, and not the model


class Service:
    """The models that are served, and the threads that run them."""

    def __init__(
        self, directions: Directions, config: ServeConfig, lms_and_classifiers: Sequence[ServedLmOrClassifier] = ()
    ) -> None:
        self.directions, self.config, self.lms_and_classifiers = directions, config, list(lms_and_classifiers)
        self.admission = Admission(config.queue, config.deadline)
        by_device = _TOKENS_ON_GPU if default_device().type == "cuda" else _TOKENS_ON_CPU
        by_backend = [one.translator.backend.tokens_per_batch for one in directions.served]
        self._budget = config.tokens_per_batch or min([by_device, *by_backend])
        self.batcher = Batcher(max_delay=config.patience, budget=self._budget, batching=config.batching)
        self._tracing = Batcher(max_delay=0.0, budget=self._budget)  # a trace takes as long as many translations

    @property
    def models(self) -> list[ServedModel]:
        """All that are served."""
        return [*self.directions.served, *self.lms_and_classifiers]

    def require(self, route: str) -> None:
        """Refuse a route that no model here answers, and list those they do."""
        if not any(route in model.abilities for model in self.models):
            raise HttpError(404, f"No model here is for /{route}: {self.offered()}")

    def offered(self) -> str:
        """The routes of each model."""
        each = (f"{model.name}: {', '.join(f'/{route}' for route in model.abilities)}" for model in self.models)
        return f"there is {'; '.join(each)}"

    async def translate(self, request: Translate, cancel_token: CancelToken) -> list[Answer]:
        """The translation of each text."""
        texts = [request.q] if isinstance(request.q, str) else request.q
        routes = [self.route(text, request.source, request.target) for text in texts]
        documents = None
        prose = [[text] for text in texts]
        if request.format == "html":
            documents = await asyncio.to_thread(lambda: [markup.parts(text) for text in texts])
            prose = [[part.text for part in parts if part.text is not None] for parts in documents]
        translated = await asyncio.gather(
            *(
                self._translations(of_text, model, request, cancel_token)
                for of_text, (model, _) in zip(prose, routes, strict=True)
            )
        )
        answers = []
        for number, (model, language) in enumerate(routes):
            translations = translated[number]
            if documents is None:
                (best,) = translations
                kept = None if model is None else best
                different = _distinct(best.text, [one.text for one in best.alternatives])
                answers.append(Answer(best.text, different, language, kept, best.truncated))
            else:
                best_html, *others = (markup.joined(documents[number], rank) for rank in _ranks(translations))
                truncated = any(one.truncated for one in translations)
                answers.append(Answer(best_html, _distinct(best_html, others), language, truncated=truncated))
        return answers

    def route(self, text: str, source: str, target: str) -> tuple[ServedTranslator | None, tuple[str, float]]:
        """The model for a text (None: it is in the target language already), and the text's language."""
        source, target = self._code(source), self._code(target)
        if target == AUTO:
            raise HttpError(400, f"{AUTO} is not supported")
        language = (source, 100.0)
        if source == AUTO:
            detected = self.directions.detect(text, self.directions.sources(target))
            if detected is None:
                raise HttpError(400, "auto is not supported: these models do not say how to tell their languages apart")
            language = detected
        try:
            return self.directions.between(language[0], target), language
        except KeyError:
            raise HttpError(400, f"{target} is not available as a target language from {language[0]}") from None

    def _code(self, requested: str) -> str:
        if (code := self.directions.code_of(requested)) is None:
            raise HttpError(400, f"{requested[:50]} is not supported")
        return code

    async def _translations(
        self, texts: list[str], model: ServedTranslator | None, request: Translate, cancel_token: CancelToken
    ) -> list[Translation]:
        if model is None:
            return [Translation(text, 0.0, 0.0, (), (), (), ()) for text in texts]
        split = await self._split(texts, model, request.split)
        job_type = TranslationJobType(model.translator, self._search(model, request.alternatives), request.details)
        jobs: list[Job[Translation]] = []
        for pieces, lengths in split:
            of_text = [piece.text for piece in pieces if piece.text]
            jobs += [Job(cancel_token, length, job_type, text) for text, length in zip(of_text, lengths, strict=True)]
        results = iter(await self.run(jobs))
        return [
            join_translations([next(results) if piece.text else None for piece in pieces], pieces)
            for pieces, _ in split
        ]

    async def _split(
        self, texts: Sequence[str], model: ServedTranslator, split: SplitMode | None
    ) -> list[tuple[list[TextSegment], list[int]]]:
        """Each text as pieces, and the lengths in tokens of those that are not empty."""
        with input_errors_answered():
            return await asyncio.to_thread(lambda: [_pieces(text, model.translator, split) for text in texts])

    def _search(self, model: ServedTranslator, alternatives: int) -> SearchConfig:
        """The model's own settings, with a beam wide enough for the alternatives; batches are not split again."""
        nbest = alternatives + 1
        own = model.translator.search
        return own.model_copy(update={"nbest": nbest, "beam": max(own.beam, nbest), "tokens_per_batch": self._budget})

    async def run(self, jobs: Sequence[Job[T]], by: Batcher | None = None) -> list[T]:
        """The results of jobs, in order. by: another thread than the one that translates."""
        (by or self.batcher).submit(jobs)
        return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))

    async def call(
        self, cancel_token: CancelToken, length: int, call: Callable[[BetweenSteps], T], by: Batcher | None = None
    ) -> T:
        """The result of a job that is not batched. length: its estimated cost, in tokens."""
        with input_errors_answered():
            (result,) = await self.run([Job(cancel_token, length, call=call)], by)
        return result

    async def stream(
        self, request: Stream, model: ServedTranslator, cancel_token: CancelToken, outcome: Outcome
    ) -> AsyncGenerator[str]:
        """The greedy translation, piece by piece as it is decoded; the deadline counts from here."""
        end = self.deadline()
        ((_, lengths),) = await self._split([request.q], model, request.split)

        def texts(between: BetweenSteps) -> Generator[str, None, bool]:
            stream = model.translator.stream(request.q, split=request.split)
            try:
                while True:
                    yield next(stream)
                    between()
            except StopIteration as over:
                return bool(over.value)

        async with aclosing(self.streamed(cancel_token, sum(lengths) + 1, texts, end, outcome)) as pieces:
            async for text in pieces:
                yield text

    def deadline(self) -> float:
        """When what begins now must be finished, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.admission.deadline

    async def streamed(
        self,
        cancel_token: CancelToken,
        length: int,
        texts: Callable[[BetweenSteps], Generator[str, None, bool]],
        end: float,
        outcome: Outcome,
    ) -> AsyncGenerator[str]:
        """What a generator in the batcher's thread yields, as it yields it. texts: makes the generator from what it is
        to call between its steps; the generator returns whether the length limit ended it.
        """
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def call(between: BetweenSteps) -> None:
            def all_texts() -> Generator[str]:
                outcome.truncated = yield from texts(between)

            try:
                for text in all_texts():
                    loop.call_soon_threadsafe(arrived.put_nowait, text)
            finally:
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        working = asyncio.ensure_future(self.call(cancel_token, length, call))
        working.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (text := await self._until(end, arrived.get())) is not None:
                yield text
            await self._until(end, working)
        finally:
            working.cancel()

    async def _until(self, end: float, result: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(end):
                return await result
        except TimeoutError:
            raise self.admission.late() from None

    async def alternatives(
        self, request: Alternatives, model: ServedTranslator, cancel_token: CancelToken
    ) -> list[Translation]:
        """Translations with a forced prefix and different next tokens."""
        translator, prefix = model.translator, request.prefix
        if translator.tokenizers[1].kind not in ("characters", "bytes"):  # a token brings the space before it
            prefix = prefix.rstrip()
        ((_, lengths),) = await self._split([request.q], model, "line")
        (prefix_ids,) = await asyncio.to_thread(translator.tokenizers[1].encode, [prefix])
        count = self.config.alternatives if request.alternatives is None else request.alternatives

        def call(between: BetweenSteps) -> list[Translation]:
            return translator.alternatives(request.q, prefix, max(1, count), only_between_steps(between))

        return await self.call(cancel_token, sum(lengths) + len(prefix_ids) + 1, call)

    async def look(self, request: Look, model: ServedModel, cancel_token: CancelToken) -> bytes:
        """The trace of a sentence: the JSON document of `heed.interpret.saving` with the requested parts, or the page
        of `heed.interpret.report`.
        """
        longest = await asyncio.to_thread(model.tokens, request.q, request.translation)
        if longest > self.config.look_tokens:
            raise HttpError(
                400,
                f"Invalid request: {longest} tokens are too many to look at; the limit is {self.config.look_tokens}",
            )

        def call(_: BetweenSteps) -> bytes:
            trace = model.trace(request.q, request.translation)
            contents: dict[str, Any] = trace_document(trace)
            if request.format == "html":
                return html_report(trace, contents)
            if request.parts:
                known = trace.names()
                for name in request.parts:
                    if name not in known:
                        raise InputError(f"there is no part {name[:50]!r}")
                contents["values"] = {name: rounded(part.values) for name, part in trace.parts(request.parts).items()}
            return json.dumps(contents, ensure_ascii=False, allow_nan=False).encode()

        return await self.call(cancel_token, longest, call, self._tracing)

    @property
    def alive(self) -> bool:
        """Whether the threads still work."""
        return self.batcher.alive and self._tracing.alive

    def close(self) -> None:
        """Finish the queues."""
        self.batcher.close()
        self._tracing.close()


@contextmanager
def input_errors_answered() -> Iterator[None]:
    """Where only the request can be wrong, an `InputError` is answered with 400."""
    try:
        yield
    except InputError as error:
        raise HttpError(400, f"Invalid request: {error}") from None


def only_between_steps(between: BetweenSteps) -> SearchMonitor:
    """For a search of one request: `between` raises to cancel all of it."""
    return SearchMonitor(lambda _: False, between, _NEVER)


def _pieces(text: str, translator: Translator, split: SplitMode | None) -> tuple[list[TextSegment], list[int]]:
    """A text as pieces, and the lengths of those that are not empty; a piece without letters counts as white space."""
    pieces = [
        piece
        if has_letters(piece.text)
        else TextSegment(piece.before + piece.text + piece.after, "", "", piece.no_space_before)
        for piece in translator.pieces(text, split)
    ]
    encoded = translator.tokenizers[0].encode([piece.text for piece in pieces if piece.text])
    return pieces, [len(ids) for ids in encoded]


def has_letters(text: str) -> bool:
    """Whether there is anything to translate: numbers, punctuation and emoji are the same in every language."""
    return any(character.isalpha() for character in text)


def _distinct(best: str, texts: Sequence[str]) -> list[str]:
    """Alternatives that differ from the best and from each other: several token sequences may spell one text."""
    return [text for text in dict.fromkeys(texts) if text != best]


def _ranks(translations: Sequence[Translation]) -> list[list[str]]:
    """The best of each, then the second best of each, as far as all have one."""
    depth = min((len(one.alternatives) for one in translations), default=0)
    return [[(one, *one.alternatives)[rank].text for one in translations] for rank in range(depth + 1)]

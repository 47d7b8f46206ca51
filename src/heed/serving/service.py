"""Texts to translations, for one request: languages found out, HTML taken apart, long texts cut, all of it batched.

Knows nothing of HTTP but the problems it may have. Nothing here blocks the event loop: cutting and counting go to
threads, models to the batcher.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import torch

from heed.config import SearchConfig, Split
from heed.decoding.cancellation import Watch
from heed.errors import InputError
from heed.inference.translation import Translation, joined
from heed.interpret.report import report
from heed.interpret.saving import document, rounded
from heed.serving import markup
from heed.serving.admission import Admission
from heed.serving.batcher import Batcher, Job, Ticket
from heed.serving.config import ServeConfig
from heed.serving.events import Outcome
from heed.serving.halves import Half
from heed.serving.kinds import Translating
from heed.serving.language_codes import AUTO
from heed.serving.models import Directions, Served
from heed.serving.pieces import Answer, Cut, cut, others, ranks, unchanged
from heed.serving.problems import Problem
from heed.serving.schemas import Alternatives, Look, Stream, Translate

T = TypeVar("T")
_NEVER = sys.maxsize  # steps: when nobody waits for the one request of a batch, all of it ends
_ON_CPU, _ON_GPU = 4096, 65_536  # tokens in work at a time


class Service:
    """All that is served, and the thread that does it."""

    def __init__(self, directions: Directions, config: ServeConfig, halves: Sequence[Half] = ()) -> None:
        self.directions, self.config, self.halves = directions, config, list(halves)
        self.admission = Admission(config.queue, config.deadline)
        budget = config.tokens_per_batch or (_ON_GPU if torch.cuda.is_available() else _ON_CPU)
        self.batcher = Batcher(patience=config.patience, budget=budget, batching=config.batching)
        self._looking = Batcher(patience=0.0, budget=budget)  # a look takes as long as many translations
        self._budget = budget

    @property
    def models(self) -> list[Served | Half]:
        """All that is served."""
        return [*self.directions.served, *self.halves]

    def able(self, what: str) -> None:
        """Refuse what no model here can do, and say what they can."""
        if not any(what in one.abilities for one in self.models):
            raise Problem(404, f"No model here is for /{what}: {self.offered()}")

    def offered(self) -> str:
        """What can be asked of each model, as routes."""
        each = (f"{one.name}: {', '.join(f'/{what}' for what in one.abilities)}" for one in self.models)
        return f"there is {'; '.join(each)}"

    async def translate(self, asked: Translate, ticket: Ticket) -> list[Answer]:
        """The translation of each text."""
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        routes = [self.route(text, asked.source, asked.target) for text in texts]
        documents = None
        if asked.format == "html":
            documents = await asyncio.to_thread(lambda: [markup.parts(text) for text in texts])
        prose = [[text] for text in texts]
        if documents is not None:
            prose = [[part.text for part in parts if part.text is not None] for parts in documents]
        found = await asyncio.gather(
            *(
                self._translations(of_text, model, asked, ticket)
                for of_text, (model, _) in zip(prose, routes, strict=True)
            )
        )
        answers = []
        for number, (_, language) in enumerate(routes):
            if documents is None:
                (best,) = found[number]
                kept = None if routes[number][0] is None else best
                different = others(best.text, [one.text for one in best.alternatives])
                answers.append(Answer(best.text, different, language, kept, best.truncated))
            else:
                whole = [markup.joined(documents[number], rank) for rank in ranks(found[number])]
                truncated = any(one.truncated for one in found[number])
                answers.append(Answer(whole[0], others(whole[0], whole[1:]), language, truncated=truncated))
        return answers

    def route(self, text: str, source: str, target: str) -> tuple[Served | None, tuple[str, float]]:
        """The model for a text (none: it is in the target's language already), and the text's language."""
        source, target = self._code(source), self._code(target)
        if target == AUTO:
            raise Problem(400, f"{AUTO} is not supported")
        language = (source, 100.0)
        if source == AUTO:
            among = self.directions.sources(target)
            if (found := self.directions.detect(text, among)) is None:
                raise Problem(400, "auto is not supported: these models do not say how to tell their languages apart")
            language = found
        try:
            return self.directions.between(language[0], target), language
        except KeyError:
            raise Problem(400, f"{target} is not available as a target language from {language[0]}") from None

    def _code(self, asked: str) -> str:
        if (code := self.directions.code_of(asked)) is None:
            raise Problem(400, f"{asked[:50]} is not supported")
        return code

    async def _translations(
        self, texts: list[str], model: Served | None, asked: Translate, ticket: Ticket
    ) -> list[Translation]:
        if model is None:
            return [unchanged(text) for text in texts]
        in_pieces = await self._cut(texts, model, asked.split)
        kind = Translating(model.translator, self._search(model, asked.alternatives), asked.details)
        jobs: list[Job[Translation]] = []
        for one in in_pieces:
            texts_of = [piece.text for piece in one.pieces if piece.text]
            jobs += [Job(ticket, length, kind, text) for text, length in zip(texts_of, one.lengths, strict=True)]
        self.batcher.submit(jobs)
        found = iter(await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs)))
        return [joined([next(found) if piece.text else None for piece in one.pieces], one.pieces) for one in in_pieces]

    async def _cut(self, texts: Sequence[str], model: Served, split: Split | None) -> list[Cut]:
        try:
            return await asyncio.to_thread(cut, texts, model.translator, split)
        except InputError as error:
            raise Problem(400, f"Invalid request: {error}") from None

    def _search(self, model: Served, alternatives: int) -> SearchConfig:
        """The model's own settings, wide enough for what is asked, and never cut into smaller batches again."""
        nbest = alternatives + 1
        own = model.translator.search
        wider = {"nbest": nbest, "beam": max(own.beam, nbest), "tokens_per_batch": self._budget}
        return own.model_copy(update=wider)

    async def errand(
        self, ticket: Ticket, length: int, do: Callable[[Callable[[], None]], T], by: Batcher | None = None
    ) -> T:
        """Have something else done, by the thread that translates or another; what is wrong with it is answered."""
        job: Job[T] = Job(ticket, length, errand=do)
        (by or self.batcher).submit([job])
        try:
            return await asyncio.wrap_future(job.future)
        except InputError as error:
            raise Problem(400, f"Invalid request: {error}") from None

    async def stream(self, asked: Stream, model: Served, ticket: Ticket, outcome: Outcome) -> AsyncGenerator[str]:
        """The greedy translation, piece by piece as it comes; the time for it is counted from here."""
        end = self.deadline()
        (in_pieces,) = await self._cut([asked.q], model, asked.split)

        def texts(between: Callable[[], None]) -> Generator[str, None, bool]:
            stream = model.translator.stream(asked.q, split=asked.split)
            try:
                while True:
                    yield next(stream)
                    between()
            except StopIteration as over:
                return bool(over.value)

        async with aclosing(self.streamed(ticket, sum(in_pieces.lengths) + 1, texts, end, outcome)) as pieces:
            async for text in pieces:
                yield text

    def deadline(self) -> float:
        """When what begins now must be done, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.admission.deadline

    async def streamed(
        self,
        ticket: Ticket,
        length: int,
        texts: Callable[[Callable[[], None]], Generator[str, None, bool]],
        end: float,
        outcome: Outcome,
    ) -> AsyncGenerator[str]:
        """What an errand has to tell, as it tells it. texts: is given what to call between its steps, and returns
        whether it was cut off.
        """
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def do(between: Callable[[], None]) -> None:
            def all_of_it() -> Generator[str]:
                outcome.truncated = yield from texts(between)

            try:
                for text in all_of_it():
                    loop.call_soon_threadsafe(arrived.put_nowait, text)
            finally:
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        working = asyncio.ensure_future(self.errand(ticket, length, do))
        working.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (text := await self._until(end, arrived.get())) is not None:
                yield text
            await self._until(end, working)
        finally:
            working.cancel()

    async def _until(self, end: float, what: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(end):
                return await what
        except TimeoutError:
            raise self.admission.late() from None

    async def alternatives(self, asked: Alternatives, model: Served, ticket: Ticket) -> list[Translation]:
        """Other ways to go on after a prefix."""
        translator, prefix = model.translator, asked.prefix
        if translator.tokenizers[1].kind not in ("characters", "bytes"):  # where a word brings the space before it
            prefix = prefix.rstrip()
        (in_pieces,) = await self._cut([asked.q], model, "line")
        (begun,) = await asyncio.to_thread(translator.tokenizers[1].encode, [prefix])
        count = self.config.alternatives if asked.alternatives is None else asked.alternatives

        def do(between: Callable[[], None]) -> list[Translation]:
            watch = Watch(lambda _: ticket.gone, between, _NEVER)
            return translator.alternatives(asked.q, prefix, max(1, count), watch)

        return await self.errand(ticket, sum(in_pieces.lengths) + len(begun) + 1, do)

    async def look(self, asked: Look, model: Served | Half, ticket: Ticket) -> bytes:
        """The trace of a sentence as the JSON document of `heed.interpret.saving`, with the parts that were asked for,
        or as the page of `heed.interpret.report`.
        """
        longest = await asyncio.to_thread(model.tokens, asked.q, asked.translation)
        if longest > self.config.look_tokens:
            raise Problem(
                400,
                f"Invalid request: {longest} tokens are too many to look at; the limit is {self.config.look_tokens}",
            )

        def do(_: Callable[[], None]) -> bytes:
            trace = model.trace(asked.q, asked.translation)
            found: dict[str, Any] = document(trace)
            if asked.format == "html":
                return report(trace, found)
            if asked.parts:
                known = trace.names()
                for name in asked.parts:
                    if name not in known:
                        raise InputError(f"there is no part {name[:50]!r}")
                found["values"] = {name: rounded(part.values) for name, part in trace.parts(asked.parts).items()}
            return json.dumps(found, ensure_ascii=False, allow_nan=False).encode()

        return await self.errand(ticket, longest, do, self._looking)

    @property
    def alive(self) -> bool:
        """Whether the threads still work."""
        return self.batcher.alive and self._looking.alive

    def close(self) -> None:
        """Finish what waits."""
        self.batcher.close()
        self._looking.close()

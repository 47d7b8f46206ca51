"""Requests to models that do not translate, to jobs and back: texts to write, to sort into classes, to make vectors of.

Knows nothing of HTTP but the problems it may have; `service` has the thread that does it and the time there is.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from collections.abc import Generator as Generator_
from contextlib import aclosing
from typing import Any, TypeVar

from heed.config import SearchConfig
from heed.decoding.cancellation import Watch
from heed.errors import HeedError, InputError
from heed.inference.generator import Generated, Generator
from heed.serving.batcher import Job, Ticket
from heed.serving.events import Outcome
from heed.serving.halves import Half
from heed.serving.kinds import Classifying, Embedding, Pooling, Writing
from heed.serving.problems import Problem
from heed.serving.schemas import Generate
from heed.serving.service import Service
from heed.text.labels import JoinedTexts

T = TypeVar("T")
_SEEDS = 2**32
_NEVER = sys.maxsize  # steps: when nobody waits for a text, its errand ends, and not the text


def generator_for(service: Service, name: str | None) -> Generator:
    """What writes: the model of this name, or the only one that can."""
    able = {one.name: one.generator for one in service.halves if one.generator is not None}
    return _chosen(service, "generate", able, name)


def classifying_for(service: Service, name: str | None) -> Classifying:
    """What tells labels, likewise."""
    able = {
        one.name: Classifying(one.classifier, one.tokenizer) for one in service.halves if one.classifier is not None
    }
    return _chosen(service, "classify", able, name)


def embedding_for(service: Service, name: str | None, pooling: Pooling) -> Embedding:
    """What makes vectors, likewise. Any model can; one that translates reads with its encoder."""
    able = {one.name: Embedding(one.model, one.tokenizer, one.max_tokens, pooling) for one in service.models}
    return _chosen(service, "embed", able, name)


def half_named(service: Service, name: str | None) -> Half | None:
    """A model that does not translate: the one of this name; no name: the only model there is, if it is such a one."""
    if name is None and service.directions.served:
        return None
    return _chosen(service, "look", {half.name: half for half in service.halves}, name)


def _chosen(service: Service, what: str, able: Mapping[str, T], name: str | None) -> T:
    service.able(what)
    if name is not None:
        if name not in able:
            raise Problem(404, f"No model here is called {name[:50]} and is for /{what}: {service.offered()}")
        return able[name]
    if len(able) > 1:
        raise Problem(400, f"Invalid request: several models are for /{what}: say which with model: {', '.join(able)}")
    return next(iter(able.values()))


def search_for(asked: Generate, generator: Generator) -> SearchConfig:
    """The model's own settings with what was asked for on top: the likeliest tokens, unless something says to draw."""
    own, longest = generator.search, generator.max_tokens
    if asked.max_length is not None and asked.max_length > longest:
        raise Problem(400, f"Invalid request: max_length parameter must be <= {longest}")
    drawing = {name: getattr(asked, name) for name in ("temperature", "top_k", "top_p", "seed")}
    given = {name: value for name, value in drawing.items() if value is not None}
    sample = asked.temperature != 0 and (own.sample or bool(given))
    wanted: dict[str, Any] = {"sample": sample, "beam": 1, "nbest": 1}
    wanted["max_length"] = asked.max_length or min(own.max_length or longest, longest)
    if sample:
        wanted |= {"seed": secrets.randbelow(_SEEDS), **given}
    try:
        return SearchConfig.model_validate(own.model_dump() | wanted)
    except HeedError as error:
        raise Problem(400, f"Invalid request: {error}") from None


async def written(
    service: Service, asked: Generate, generator: Generator, search: SearchConfig, ticket: Ticket
) -> Generated:
    """The text that a prompt becomes."""
    (found,) = await _done(service, [Job(ticket, search.max_length or 1, Writing(generator, search), asked.prompt)])
    return found


async def streamed(
    service: Service, asked: Generate, generator: Generator, search: SearchConfig, ticket: Ticket, outcome: Outcome
) -> AsyncGenerator[str]:
    """The same piece by piece as it is written."""

    def texts(between: Callable[[], None]) -> Generator_[str, None, bool]:
        return generator.stream(asked.prompt, search, Watch(lambda _: False, between, _NEVER))

    pieces = service.streamed(ticket, search.max_length or 1, texts, service.deadline(), outcome)
    async with aclosing(pieces):
        async for text in pieces:
            yield text


async def read(service: Service, q: str | list[str], kind: Classifying | Embedding, ticket: Ticket) -> list[Any]:
    """What becomes of each text: a `Classified`, or a vector."""
    texts = [q] if isinstance(q, str) else q
    encoded = await asyncio.to_thread(JoinedTexts(kind.tokenizer).encode, texts)
    for number, ids in enumerate(encoded, 1):
        if not ids:
            raise Problem(400, f"Invalid request: text {number} is empty, or has an empty part")
        if len(ids) > kind.max_tokens:
            raise Problem(
                400, f"Invalid request: text {number} has {len(ids)} tokens; the model takes at most {kind.max_tokens}"
            )
    return await _done(service, [Job(ticket, len(ids), kind, text) for text, ids in zip(texts, encoded, strict=True)])


async def _done(service: Service, jobs: Sequence[Job[Any]]) -> list[Any]:
    service.batcher.submit(jobs)
    try:
        return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
    except InputError as error:
        raise Problem(400, f"Invalid request: {error}") from None

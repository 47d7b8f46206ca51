"""Routes to language models and encoders: generate a text, classify, embed; requests to jobs and back."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from heed.config import SearchConfig
from heed.errors import HeedError
from heed.inference.generator import Generation
from heed.inference.generator import Generator as TextGenerator
from heed.serving.batcher import CancelToken, Job
from heed.serving.http_errors import HttpError
from heed.serving.jobs import BetweenSteps, ClassificationJobType, EmbeddingJobType, GenerationJobType
from heed.serving.libretranslate import check_size
from heed.serving.models import ServedLmOrClassifier
from heed.serving.requests import Classify, Embed, Generate, body_of
from heed.serving.responses import ERRORS, Embedded, EventStream, GeneratedText, Labelled, Outcome, as_events
from heed.serving.service import Service, input_errors_answered, only_between_steps
from heed.text.labels import TextPairEncoder

T = TypeVar("T")
_SEEDS = 2**32


def add_routes(app: FastAPI, service: Service) -> None:
    """Add them; a server without such a model answers with the routes that it has."""
    _add_generate(app, service)

    @app.post("/classify", response_model=Labelled | list[Labelled], responses=ERRORS, openapi_extra=body_of(Classify))
    async def classify(request: Request) -> Labelled | list[Labelled]:
        """The most probable label of a text and the probability of each label; a list for a list of texts."""
        service.require("classify")
        fields = Classify.of(request.state.fields)
        able = {
            model.name: ClassificationJobType(model.classifier, model.tokenizer)
            for model in service.lms_and_classifiers
            if model.classifier is not None
        }
        results = await _encode(service, request, fields, "classify", able)
        each = [Labelled(label=one.label, probabilities=one.probabilities) for one in results]
        return each[0] if isinstance(fields.q, str) else each

    @app.post("/embed", response_model=Embedded | list[Embedded], responses=ERRORS, openapi_extra=body_of(Embed))
    async def embed(request: Request) -> Embedded | list[Embedded]:
        """The pooled hidden states of the model's last layer (a translator's encoder); a list for a list of texts."""
        fields = Embed.of(request.state.fields)
        able = {
            model.name: EmbeddingJobType(model.model, model.tokenizer, model.max_tokens, fields.pooling)
            for model in service.models
        }
        each = [Embedded(embedding=vector) for vector in await _encode(service, request, fields, "embed", able)]
        return each[0] if isinstance(fields.q, str) else each


def _add_generate(app: FastAPI, service: Service) -> None:
    @app.post(
        "/generate",
        response_model=GeneratedText,
        response_model_exclude_none=True,
        responses={**ERRORS, 200: {"model": GeneratedText, "content": {"text/event-stream": {}}}},
        openapi_extra=body_of(Generate),
    )
    async def generate(request: Request) -> GeneratedText | Response:
        """Generate a text: greedily, or sampled if temperature, top_k, top_p or seed is given. With `stream`,
        server-sent events: `{"text"}` token by token, the prompt first, last `done` with the whole text.
        """
        service.require("generate")
        fields = Generate.of(request.state.fields)
        check_size(fields.prompt, service.config)
        able = {one.name: one.generator for one in service.lms_and_classifiers if one.generator is not None}
        generator = _chosen(service, "generate", able, fields.model)
        search = _search(fields, generator)
        if fields.stream:
            outcome = Outcome()
            return EventStream(
                service.admission,
                lambda cancel_token: as_events(
                    _streamed(service, fields.prompt, generator, search, cancel_token, outcome), "text", outcome
                ),
            )
        job_type, length = GenerationJobType(generator, search), search.max_length or 1

        async def work(cancel_token: CancelToken) -> list[Generation]:
            with input_errors_answered():
                return await service.run([Job(cancel_token, length, job_type, fields.prompt)])

        (generated,) = await service.admission.work(request.receive, work)
        return GeneratedText(
            text=generated.text,
            log_prob=generated.log_prob,
            seed=search.seed if search.sample else None,
            truncated=generated.truncated or None,
        )


def lm_or_classifier_named(service: Service, name: str | None) -> ServedLmOrClassifier | None:
    """The model to trace: by its name; without a name the only one, or None where a translator could be meant."""
    if name is None and service.directions.served:
        return None
    return _chosen(service, "look", {model.name: model for model in service.lms_and_classifiers}, name)


def _chosen(service: Service, route: str, able: Mapping[str, T], name: str | None) -> T:
    """The model of this name; without a name the only one that answers the route."""
    service.require(route)
    if name is not None:
        if name not in able:
            raise HttpError(404, f"No model here is called {name[:50]} and is for /{route}: {service.offered()}")
        return able[name]
    if len(able) > 1:
        raise HttpError(
            400, f"Invalid request: several models are for /{route}: say which with model: {', '.join(able)}"
        )
    return next(iter(able.values()))


def _search(fields: Generate, generator: TextGenerator) -> SearchConfig:
    """The model's own settings, overridden by the request's: greedy unless something asks to sample."""
    own, longest = generator.search, generator.max_tokens
    if fields.max_length is not None and fields.max_length > longest:
        raise HttpError(400, f"Invalid request: max_length parameter must be <= {longest}")
    sampling = {name: getattr(fields, name) for name in ("temperature", "top_k", "top_p", "seed")}
    given = {name: value for name, value in sampling.items() if value is not None}
    sample = fields.temperature != 0 and (own.sample or bool(given))
    settings: dict[str, Any] = {"sample": sample, "beam": 1, "nbest": 1}
    settings["max_length"] = fields.max_length or min(own.max_length or longest, longest)
    if sample:
        settings |= {"seed": secrets.randbelow(_SEEDS), **given}
    try:
        return SearchConfig.model_validate(own.model_dump() | settings)
    except HeedError as error:
        raise HttpError(400, f"Invalid request: {error}") from None


async def _streamed(
    service: Service,
    prompt: str,
    generator: TextGenerator,
    search: SearchConfig,
    cancel_token: CancelToken,
    outcome: Outcome,
) -> AsyncGenerator[str]:
    def texts(between: BetweenSteps) -> Generator[str, None, bool]:
        return generator.stream(prompt, search, only_between_steps(between))

    pieces = service.streamed(cancel_token, search.max_length or 1, texts, service.deadline(), outcome)
    async with aclosing(pieces):
        async for text in pieces:
            yield text


async def _encode(
    service: Service,
    request: Request,
    fields: Classify | Embed,
    route: str,
    able: Mapping[str, ClassificationJobType | EmbeddingJobType],
) -> list[Any]:
    """The result of each text: a `Classification`, or an embedding."""
    check_size(fields.q, service.config)
    job_type = _chosen(service, route, able, fields.model)
    texts = [fields.q] if isinstance(fields.q, str) else fields.q

    async def work(cancel_token: CancelToken) -> list[Any]:
        encoded = await asyncio.to_thread(TextPairEncoder(job_type.tokenizer).encode, texts)
        for number, ids in enumerate(encoded, 1):
            if not ids:
                raise HttpError(400, f"Invalid request: text {number} is empty, or has an empty part")
            if len(ids) > job_type.max_tokens:
                limit = job_type.max_tokens
                raise HttpError(
                    400, f"Invalid request: text {number} has {len(ids)} tokens; the model takes at most {limit}"
                )
        jobs: list[Job[Any]] = [
            Job(cancel_token, len(ids), job_type, text) for text, ids in zip(texts, encoded, strict=True)
        ]
        with input_errors_answered():
            return await service.run(jobs)

    return await service.admission.work(request.receive, work)

"""Routes /generate, /classify and /embed, for language models, classifiers and encoders."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from heed.errors import HeedError
from heed.inference.generator import Generation
from heed.inference.generator import Generator as TextGenerator
from heed.search_config import SearchConfig
from heed.serving.batcher import CancelToken, Job
from heed.serving.http_errors import HttpError
from heed.serving.jobs import BetweenSteps, ClassificationJobType, EmbeddingJobType, GenerationJobType
from heed.serving.libretranslate import check_size
from heed.serving.models import ServedLmOrClassifier
from heed.serving.requests import ClassifyRequest, EmbedRequest, GenerateRequest, request_body
from heed.serving.responses import (
    ERRORS,
    ClassifyResponse,
    EmbedResponse,
    EventStream,
    GenerateResponse,
    StreamOutcome,
    as_server_sent_events,
)
from heed.serving.service import Service, cancel_whole_request, input_errors_as_400
from heed.text.labels import TextPairEncoder

T = TypeVar("T")
_SEEDS = 2**32


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes; where no served model supports one, it answers 404 and lists the routes that are supported."""
    _add_generate(app, service)

    @app.post(
        "/classify",
        response_model=ClassifyResponse | list[ClassifyResponse],
        responses=ERRORS,
        openapi_extra=request_body(ClassifyRequest),
    )
    async def classify(request: Request) -> ClassifyResponse | list[ClassifyResponse]:
        """Classify a text: its most probable label and the probability of each label; a list for a list of texts."""
        service.require("classify")
        fields = ClassifyRequest.parse(request.state.fields)
        candidates = {
            model.name: ClassificationJobType(model.classifier, model.tokenizer)
            for model in service.lms_and_classifiers
            if model.classifier is not None
        }
        results = await _run_encoder(service, request, fields, "classify", candidates)
        responses = [ClassifyResponse(label=result.label, probabilities=result.probabilities) for result in results]
        return responses[0] if isinstance(fields.q, str) else responses

    @app.post(
        "/embed",
        response_model=EmbedResponse | list[EmbedResponse],
        responses=ERRORS,
        openapi_extra=request_body(EmbedRequest),
    )
    async def embed(request: Request) -> EmbedResponse | list[EmbedResponse]:
        """Embed a text: pooled hidden states of the last layer (translators: encoder); a list for a list of texts."""
        fields = EmbedRequest.parse(request.state.fields)
        candidates = {
            model.name: EmbeddingJobType(model.model, model.tokenizer, model.max_tokens, fields.pooling)
            for model in service.models
        }
        responses = [
            EmbedResponse(embedding=vector)
            for vector in await _run_encoder(service, request, fields, "embed", candidates)
        ]
        return responses[0] if isinstance(fields.q, str) else responses


def _add_generate(app: FastAPI, service: Service) -> None:
    @app.post(
        "/generate",
        response_model=GenerateResponse,
        response_model_exclude_none=True,
        responses={**ERRORS, 200: {"model": GenerateResponse, "content": {"text/event-stream": {}}}},
        openapi_extra=request_body(GenerateRequest),
    )
    async def generate(request: Request) -> GenerateResponse | Response:
        """Generate a text: greedily, or by sampling if temperature, top_k, top_p or seed is given. With `stream`,
        server-sent events: `{"text"}` per token, the prompt first; finally `done` with the whole text.
        """
        service.require("generate")
        fields = GenerateRequest.parse(request.state.fields)
        check_size(fields.prompt, service.config)
        candidates = {
            model.name: model.generator for model in service.lms_and_classifiers if model.generator is not None
        }
        generator = _select_model(service, "generate", candidates, fields.model)
        search = _search_config(fields, generator)
        if fields.stream:
            outcome = StreamOutcome()
            return EventStream(
                service.admission,
                lambda cancel_token: as_server_sent_events(
                    _stream(service, fields.prompt, generator, search, cancel_token, outcome), "text", outcome
                ),
            )
        job_type, length = GenerationJobType(generator, search), search.max_length or 1

        async def handle(cancel_token: CancelToken) -> list[Generation]:
            with input_errors_as_400():
                return await service.run_jobs([Job(cancel_token, length, job_type, fields.prompt)])

        (generated,) = await service.admission.run(request.receive, handle)
        return GenerateResponse(
            text=generated.text,
            log_prob=generated.log_prob,
            seed=search.seed if search.sample else None,
            truncated=generated.truncated or None,
        )


def select_lm_or_classifier(service: Service, name: str | None) -> ServedLmOrClassifier | None:
    """The model to trace, by name; without a name the only one, or None if translators are served."""
    if name is None and service.directions.served:
        return None
    return _select_model(service, "look", {model.name: model for model in service.lms_and_classifiers}, name)


def _select_model(service: Service, route: str, candidates: Mapping[str, T], name: str | None) -> T:
    """The model of this name; without a name the only one that supports the route."""
    service.require(route)
    if name is not None:
        if name not in candidates:
            raise HttpError(404, f"No model named {name[:50]} supports /{route}. {service.supported_routes()}")
        return candidates[name]
    if len(candidates) > 1:
        names = ", ".join(candidates)
        raise HttpError(400, f"Invalid request: several models support /{route}: choose one with model: {names}")
    return next(iter(candidates.values()))


def _search_config(fields: GenerateRequest, generator: TextGenerator) -> SearchConfig:
    """The model's search settings, overridden by the request's; greedy unless a sampling parameter is given."""
    defaults, max_tokens = generator.search, generator.max_tokens
    if fields.max_length is not None and fields.max_length > max_tokens:
        raise HttpError(400, f"Invalid request: max_length parameter must be <= {max_tokens}")
    sampling = {name: getattr(fields, name) for name in ("temperature", "top_k", "top_p", "seed")}
    given = {name: value for name, value in sampling.items() if value is not None}
    sample = fields.temperature != 0 and (defaults.sample or bool(given))
    settings: dict[str, Any] = {"sample": sample, "beam": 1, "nbest": 1}
    settings["max_length"] = fields.max_length or min(defaults.max_length or max_tokens, max_tokens)
    if sample:
        settings |= {"seed": secrets.randbelow(_SEEDS), **given}
    try:
        return SearchConfig.model_validate(defaults.model_dump() | settings)
    except HeedError as error:
        raise HttpError(400, f"Invalid request: {error}") from None


async def _stream(
    service: Service,
    prompt: str,
    generator: TextGenerator,
    search: SearchConfig,
    cancel_token: CancelToken,
    outcome: StreamOutcome,
) -> AsyncGenerator[str]:
    def generate_text(between_steps: BetweenSteps) -> Generator[str, None, bool]:
        return generator.stream(prompt, search, cancel_whole_request(between_steps))

    chunks = service.stream_call(cancel_token, search.max_length or 1, generate_text, service.deadline(), outcome)
    async with aclosing(chunks):
        async for text in chunks:
            yield text


async def _run_encoder(
    service: Service,
    request: Request,
    fields: ClassifyRequest | EmbedRequest,
    route: str,
    candidates: Mapping[str, ClassificationJobType | EmbeddingJobType],
) -> list[Any]:
    """Run the classifier or encoder; a `Classification` or an embedding for each text."""
    check_size(fields.q, service.config)
    job_type = _select_model(service, route, candidates, fields.model)
    texts = [fields.q] if isinstance(fields.q, str) else fields.q

    async def handle(cancel_token: CancelToken) -> list[Any]:
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
        with input_errors_as_400():
            return await service.run_jobs(jobs)

    return await service.admission.run(request.receive, handle)

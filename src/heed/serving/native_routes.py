"""Routes beyond LibreTranslate's API: /translate/stream, /alternatives, /look, /models, /metrics and /health/ready."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from heed.serving.health import HealthMonitor
from heed.serving.http_errors import HttpError
from heed.serving.libretranslate import check_alternatives, check_size
from heed.serving.lm_and_classifier_routes import select_lm_or_classifier
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines, histogram_lines, process_gauges
from heed.serving.models import Directions, ServedLmOrClassifier, ServedModel, ServedTranslator
from heed.serving.requests import AlternativesRequest, LookRequest, StreamRequest, request_body
from heed.serving.responses import (
    ERRORS,
    Alternative,
    AlternativesResponse,
    EventStream,
    HealthStatus,
    ModelInfo,
    StreamOutcome,
    TranslationDetails,
    as_server_sent_events,
)
from heed.serving.service import Service, has_letters


def add_routes(app: FastAPI, service: Service, health: HealthMonitor) -> None:
    _add_translation(app, service)
    _add_look(app, service)
    _add_state(app, service, health)


def _add_translation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={**ERRORS, 200: {"content": {"text/event-stream": {}}, "description": '`data: {"text": …}` …'}},
        openapi_extra=request_body(StreamRequest),
    )
    async def stream(request: Request) -> StreamingResponse:
        """Stream the greedy translation as server-sent events: `{"text"}` as decoded, then `done` with all of it."""
        service.require("translate")
        fields = StreamRequest.parse(request.state.fields)
        model = _translator(service, fields)
        if model is None or not has_letters(fields.q):
            return EventStream(
                service.admission,
                lambda _: as_server_sent_events(_empty_stream(), "translatedText", StreamOutcome(), fields.q),
            )
        outcome = StreamOutcome()
        return EventStream(
            service.admission,
            lambda cancel_token: as_server_sent_events(
                service.stream(fields, model, cancel_token, outcome), "translatedText", outcome
            ),
        )

    @app.post(
        "/alternatives",
        response_model=AlternativesResponse,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=request_body(AlternativesRequest, alternatives=service.config.alternatives),
    )
    async def alternatives(request: Request) -> AlternativesResponse:
        """Translate with a forced prefix and different continuations, the most probable next word first."""
        service.require("translate")
        fields = AlternativesRequest.parse(request.state.fields)
        check_alternatives(fields.alternatives, service.config)
        check_size(fields.q + fields.prefix, service.config)
        if (model := _translator(service, fields)) is None:
            return AlternativesResponse(alternatives=[])
        translations = await service.admission.run(
            request.receive, lambda cancel_token: service.alternatives(fields, model, cancel_token)
        )
        best_by_text = {translation.text: translation for translation in reversed(translations)}
        prefix_length = len(fields.prefix.rstrip())
        alternatives = [
            Alternative(
                text=translation.text,
                next=(translation.text[prefix_length:].split() or [""])[0],
                score=translation.score,
                truncated=translation.truncated or None,
                details=TranslationDetails.from_translation(translation) if fields.details else None,
            )
            for translation in reversed(best_by_text.values())
        ]
        return AlternativesResponse(alternatives=alternatives)


async def _empty_stream() -> AsyncGenerator[str]:
    for text in list[str]():
        yield text


def _add_look(app: FastAPI, service: Service) -> None:
    @app.post("/look", responses=ERRORS, openapi_extra=request_body(LookRequest))
    async def look(request: Request) -> Response:
        """Trace the model on a sentence: attention, most probable tokens, beam search; as `heed look` writes it."""
        fields = LookRequest.parse(request.state.fields)
        check_size(fields.q + (fields.translation or ""), service.config)
        model = select_lm_or_classifier(service, fields.model) or _translator_to_trace(service, fields)
        document = await service.admission.run(
            request.receive, lambda cancel_token: service.look(fields, model, cancel_token)
        )
        return Response(
            document, media_type="application/json" if fields.format == "json" else "text/html; charset=utf-8"
        )


def _translator_to_trace(service: Service, fields: LookRequest) -> ServedTranslator:
    for name in ("source", "target"):
        if getattr(fields, name) is None:
            raise HttpError(400, f"Invalid request: missing {name} parameter")
    model, (language, _) = service.route(fields.q, str(fields.source), str(fields.target))
    if model is None:
        raise HttpError(400, _equal_languages_error(service.directions, language))
    return model


def _equal_languages_error(directions: Directions, language: str) -> str:
    """For a text that is in the target language already, given or detected: which other language to choose."""
    if targets := [code for code in directions.targets(language) if code != language]:
        return f"Invalid request: source and target are both {language}. Choose another target: {', '.join(targets)}"
    sources = ", ".join(code for code in directions.sources(language) if code != language)
    return (
        f"Invalid request: source and target are both {language}, and no model translates from {language}. "
        f"Choose another source: {sources}"
    )


def _translator(service: Service, fields: StreamRequest | AlternativesRequest) -> ServedTranslator | None:
    check_size(fields.q, service.config)
    return service.route(fields.q, fields.source, fields.target)[0]


def _add_state(app: FastAPI, service: Service, health: HealthMonitor) -> None:
    @app.get("/health/ready", response_model=HealthStatus, response_model_exclude_none=True, responses=ERRORS)
    async def ready() -> HealthStatus:
        """Readiness: whether a load balancer should send requests to this server."""
        problem = "This server is shutting down" if service.admission.shutting_down else health.problem
        if problem is not None:
            raise HttpError(503, problem)
        return HealthStatus(
            status="ready", warning=health.warning, notes=health.notes or None, backends=health.backends
        )

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def metrics(request: Request) -> Response:
        """Metrics in Prometheus's text format."""
        batcher = service.batcher
        gauges = [
            Gauge("heed_requests_in_work", "Requests queued or running.", service.admission.active),
            Gauge("heed_jobs_waiting", "Jobs in the queue, one per piece of text.", batcher.queued),
            Gauge("heed_batches_total", "Batches finished.", batcher.batches, "counter"),
            Gauge("heed_texts_total", "Pieces of text finished.", batcher.texts, "counter"),
            Gauge(
                "heed_source_tokens_total", "Source tokens of the finished pieces of text.", batcher.tokens, "counter"
            ),
            Gauge("heed_ready", "1 if the health check passes.", float(health.problem is None)),
            *process_gauges("heed_worker"),  # those of the HTTP process come with the request metrics
        ]
        text = request.state.requests + gauge_lines(gauges)
        text += histogram_lines("heed_queue_seconds", "Queueing time of a piece of text.", batcher.queue_seconds)
        text += histogram_lines("heed_batch_texts", "Batch size, in pieces of text.", batcher.batch_sizes)
        return Response(text, media_type=CONTENT_TYPE)

    @app.get("/models", response_model=list[ModelInfo], response_model_exclude_none=True, responses=ERRORS)
    async def models() -> list[ModelInfo]:
        """List the served models."""
        return [
            ModelInfo(
                name=served.name,
                task=served.task,
                parameters=sum(weight.numel() for weight in served.model.parameters()),
                max_tokens=served.max_tokens,
                trained=served.trained,
                **_optional_fields(served),
            )
            for served in service.models
        ]


def _optional_fields(model: ServedModel) -> dict[str, Any]:
    if isinstance(model, ServedLmOrClassifier):
        return {"labels": list(model.labels)} if model.labels else {}
    fields = {"source": model.source, "target": model.target, "beam": model.translator.search.beam}
    return fields | ({"examples": list(model.examples)} if model.examples else {})

"""heed's own routes: streamed translation, alternatives, a trace of the model, metrics, readiness, the models."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from heed.serving.health import HealthMonitor
from heed.serving.http_errors import HttpError
from heed.serving.libretranslate import check_alternatives, check_size
from heed.serving.lm_and_classifier_routes import lm_or_classifier_named
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines, histogram_lines, process_gauges
from heed.serving.models import ServedLmOrClassifier, ServedModel, ServedTranslator
from heed.serving.requests import Alternatives, Look, Stream, body_of
from heed.serving.responses import (
    ERRORS,
    Alternative,
    Details,
    EventStream,
    HealthStatus,
    Model,
    Offered,
    Outcome,
    as_events,
)
from heed.serving.service import Service, has_letters


def add_routes(app: FastAPI, service: Service, health: HealthMonitor) -> None:
    """Add them all."""
    _add_translation(app, service)
    _add_looking(app, service)
    _add_state(app, service, health)


def _add_translation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={**ERRORS, 200: {"content": {"text/event-stream": {}}, "description": '`data: {"text": …}` …'}},
        openapi_extra=body_of(Stream),
    )
    async def stream(request: Request) -> StreamingResponse:
        """The greedy translation as server-sent events: `{"text"}` as it is decoded, last `done` with all of it."""
        service.require("translate")
        fields = Stream.of(request.state.fields)
        model = _model(service, fields)
        if model is None or not has_letters(fields.q):
            return EventStream(
                service.admission, lambda _: as_events(_nothing(), "translatedText", Outcome(), fields.q)
            )
        outcome = Outcome()
        return EventStream(
            service.admission,
            lambda cancel_token: as_events(
                service.stream(fields, model, cancel_token, outcome), "translatedText", outcome
            ),
        )

    @app.post(
        "/alternatives",
        response_model=Offered,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=body_of(Alternatives, alternatives=service.config.alternatives),
    )
    async def alternatives(request: Request) -> Offered:
        """Translations with a forced prefix and different continuations, the most probable next word first."""
        service.require("translate")
        fields = Alternatives.of(request.state.fields)
        check_alternatives(fields.alternatives, service.config)
        check_size(fields.q + fields.prefix, service.config)
        if (model := _model(service, fields)) is None:
            return Offered(alternatives=[])
        found = await service.admission.work(
            request.receive, lambda cancel_token: service.alternatives(fields, model, cancel_token)
        )
        found = list({one.text: one for one in reversed(found)}.values())[::-1]  # each text once, with its best score
        begun = len(fields.prefix.rstrip())
        offered = [
            Alternative(
                text=one.text,
                next=(one.text[begun:].split() or [""])[0],
                score=one.score,
                truncated=one.truncated or None,
                details=Details.of(one) if fields.details else None,
            )
            for one in found
        ]
        return Offered(alternatives=offered)


async def _nothing() -> AsyncGenerator[str]:
    """A stream without texts."""
    nothing: tuple[str, ...] = ()
    for text in nothing:
        yield text


def _add_looking(app: FastAPI, service: Service) -> None:
    @app.post("/look", responses=ERRORS, openapi_extra=body_of(Look))
    async def look(request: Request) -> Response:
        """A trace of the model: attention, most probable tokens, search; as `heed look` writes it."""
        fields = Look.of(request.state.fields)
        check_size(fields.q + (fields.translation or ""), service.config)
        model = lm_or_classifier_named(service, fields.model) or _translating(service, fields)
        found = await service.admission.work(
            request.receive, lambda cancel_token: service.look(fields, model, cancel_token)
        )
        return Response(found, media_type="application/json" if fields.format == "json" else "text/html; charset=utf-8")


def _translating(service: Service, fields: Look) -> ServedTranslator:
    for name in ("source", "target"):
        if getattr(fields, name) is None:
            raise HttpError(400, f"Invalid request: missing {name} parameter")
    model, _ = service.route(fields.q, str(fields.source), str(fields.target))
    if model is None:
        raise HttpError(400, f"{fields.target} is not available as a target language from {fields.target}")
    return model


def _model(service: Service, fields: Stream | Alternatives) -> ServedTranslator | None:
    check_size(fields.q, service.config)
    return service.route(fields.q, fields.source, fields.target)[0]


def _add_state(app: FastAPI, service: Service, health: HealthMonitor) -> None:
    @app.get("/health/ready", response_model=HealthStatus, response_model_exclude_none=True, responses=ERRORS)
    async def ready() -> HealthStatus:
        """Whether to send requests here."""
        problem = "This server is shutting down" if service.admission.closed else health.problem
        if problem is not None:
            raise HttpError(503, problem)
        return HealthStatus(
            status="ready", warning=health.warning, notes=health.notes or None, backends=health.backends
        )

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def measured(request: Request) -> Response:
        """Counters, gauges and histograms for Prometheus."""
        batcher = service.batcher
        gauges = [
            Gauge("heed_requests_in_work", "Requests taken in and not yet answered.", service.admission.taken),
            Gauge("heed_jobs_waiting", "Pieces of text that have not begun.", batcher.waiting),
            Gauge("heed_batches_total", "Batches done.", batcher.batches, "counter"),
            Gauge("heed_texts_total", "Pieces of text done.", batcher.texts, "counter"),
            Gauge("heed_source_tokens_total", "Their tokens.", batcher.tokens, "counter"),
            Gauge("heed_ready", "1 if the models work.", float(health.problem is None)),
            *process_gauges("heed_worker"),  # those of the process that listens are with its requests
        ]
        found = request.state.requests + gauge_lines(gauges)
        found += histogram_lines("heed_queue_seconds", "How long a piece of text waited for the models.", batcher.waits)
        found += histogram_lines("heed_batch_texts", "Pieces of text in a batch.", batcher.sizes)
        return Response(found, media_type=CONTENT_TYPE)

    @app.get("/models", response_model=list[Model], response_model_exclude_none=True, responses=ERRORS)
    async def models() -> list[Model]:
        """The models that are served."""
        return [
            Model(
                name=one.name,
                task=one.task,
                parameters=sum(weight.numel() for weight in one.model.parameters()),
                max_tokens=one.max_tokens,
                trained=one.trained,
                **_particulars(one),
            )
            for one in service.models
        ]


def _particulars(model: ServedModel) -> dict[str, Any]:
    """Fields that not every model has."""
    if isinstance(model, ServedLmOrClassifier):
        return {"labels": list(model.labels)} if model.labels else {}
    known = {"source": model.source, "target": model.target, "beam": model.translator.search.beam}
    return known | ({"examples": list(model.examples)} if model.examples else {})

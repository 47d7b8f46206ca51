"""Routes of LibreTranslate's API (https://docs.libretranslate.com), compatible with its existing clients.

Deliberate differences: every limit is on, values of a wrong type get 400 instead of 500, `/health` runs the models, and
translated HTML never gains markup.
"""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request

from heed.serving.config import ServeConfig
from heed.serving.health import HealthMonitor
from heed.serving.http_errors import HttpError
from heed.serving.languages import AUTO, language_name
from heed.serving.request_middleware import DISABLED
from heed.serving.requests import DetectRequest, TranslateRequest, request_body
from heed.serving.responses import (
    ERRORS,
    DetectedLanguage,
    HealthStatus,
    Language,
    TranslateResponse,
    TranslationDetails,
)
from heed.serving.service import Service, TranslatedText


def add_routes(app: FastAPI, service: Service, health: HealthMonitor, *, key_required: bool) -> None:

    @app.post(
        "/translate",
        response_model=TranslateResponse,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=request_body(TranslateRequest, alternatives=service.config.alternatives),
    )
    async def translate(request: Request) -> TranslateResponse:
        """Translate a text, or a list of texts."""
        service.require("translate")
        fields = TranslateRequest.parse(request.state.fields)
        check_size(fields.q, service.config)
        check_alternatives(fields.alternatives, service.config)
        texts = await service.admission.run(request.receive, lambda cancel: service.translate(fields, cancel))
        return _translate_response(fields, texts)

    @app.post(
        "/detect", response_model=list[DetectedLanguage], responses=ERRORS, openapi_extra=request_body(DetectRequest)
    )
    async def detect(request: Request) -> list[DetectedLanguage]:
        """Detect which of the served languages a text is in, the most probable first."""
        service.require("translate")
        fields = DetectRequest.parse(request.state.fields)
        check_size(fields.q, service.config)
        directions = service.directions
        ranked = directions.detector.detect(fields.q) or [(directions.codes[0], 0.0)]
        return [DetectedLanguage(confidence=confidence, language=language) for language, confidence in ranked]

    @app.get("/languages", response_model=list[Language], responses=ERRORS)
    @app.post("/languages", response_model=list[Language], responses=ERRORS)
    async def languages() -> list[Language]:
        """List the languages, and the targets that each can be translated to."""
        by_code = {code: service.directions.targets(code) for code in service.directions.codes}
        return [Language(code=code, name=language_name(code), targets=targets) for code, targets in by_code.items()]

    @app.get("/health", response_model=HealthStatus, response_model_exclude_none=True, responses=ERRORS)
    async def healthy() -> HealthStatus:
        """Report whether the models work."""
        if (problem := health.problem) is not None:
            raise HttpError(503, problem)
        return HealthStatus(status="ok")

    @app.get("/frontend/settings", responses=ERRORS)
    async def settings() -> dict[str, Any]:
        """Settings for a web client."""
        return _settings(service, key_required=key_required)

    @app.post("/suggest", responses=ERRORS)
    async def suggest() -> None:
        """Disabled: this server stores no suggestions."""
        raise HttpError(403, DISABLED["/suggest"])

    @app.post("/translate_file", responses=ERRORS)
    async def translate_file() -> None:
        """Disabled: this server translates texts, not files."""
        raise HttpError(403, DISABLED["/translate_file"])


def check_size(q: str | list[str], config: ServeConfig) -> None:
    """Raise a 400 for too many texts or characters."""
    texts = [q] if isinstance(q, str) else q
    if len(texts) > config.texts:
        raise HttpError(400, f"Invalid request: request ({len(texts)}) exceeds text limit ({config.texts})")
    size = sum(len(text) for text in texts)
    if size > config.characters:
        raise HttpError(400, f"Invalid request: request ({size}) exceeds text limit ({config.characters})")


def check_alternatives(count: int | None, config: ServeConfig) -> None:
    """Raise a 400 for more alternatives than the server allows."""
    if count is not None and count > config.alternatives:
        raise HttpError(400, f"Invalid request: alternatives parameter must be <= {config.alternatives}")


def _translate_response(fields: TranslateRequest, answers: list[TranslatedText]) -> TranslateResponse:
    """The response: lists if `q` is a list, even of one text; else single values."""
    values: dict[str, list[Any]] = {"translatedText": [answer.text for answer in answers]}
    if fields.alternatives:
        values["alternatives"] = [answer.alternatives for answer in answers]
    if fields.source.lower() == AUTO:
        values["detectedLanguage"] = [
            DetectedLanguage(language=answer.language[0], confidence=answer.language[1]) for answer in answers
        ]
    for flag in ("truncated", "normalized"):
        if any(getattr(answer, flag) for answer in answers):
            values[flag] = [getattr(answer, flag) for answer in answers]
    if any(answer.corrections for answer in answers):
        values["corrections"] = [[asdict(correction) for correction in answer.corrections] for answer in answers]
    if fields.details and fields.format == "text":
        values["details"] = [_details(answer) for answer in answers]
    return TranslateResponse.model_validate(
        {name: value[0] if isinstance(fields.q, str) else value for name, value in values.items()}
    )


def _details(answer: TranslatedText) -> TranslationDetails:
    if answer.translation is None:
        return TranslationDetails(score=0.0, tokens=[], source_tokens=[], alignment=[], segments=[])
    return TranslationDetails.from_translation(answer.translation)


def _settings(service: Service, *, key_required: bool) -> dict[str, Any]:
    config, served = service.config, service.directions.served
    source, target = (served[0].source, served[0].target) if served else ("", "")
    return {
        "charLimit": config.characters,
        "frontendTimeout": 500,
        "deadline": config.deadline,  # heed's own field: time limit for a request, in seconds
        "apiKeys": key_required,
        "keyRequired": key_required,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": language_name(source)},
            "target": {"code": target, "name": language_name(target)},
        },
    }

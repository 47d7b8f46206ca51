"""LibreTranslate's API, as its clients use it: https://docs.libretranslate.com, and what they really send.

Deliberate differences: every limit is on, wrong types are the client's mistakes and not the server's, `/health` runs
the models, and translated HTML never gains markup.
"""

from typing import Any

from fastapi import FastAPI, Request

from heed.serving.config import ServeConfig
from heed.serving.health import HealthMonitor
from heed.serving.http_errors import HttpError
from heed.serving.languages import AUTO, name_of
from heed.serving.request_middleware import CLOSED
from heed.serving.requests import Detect, Translate, body_of
from heed.serving.responses import ERRORS, Details, Detected, HealthStatus, Language, Translated
from heed.serving.service import Answer, Service


def add_routes(app: FastAPI, service: Service, health: HealthMonitor, *, key_required: bool) -> None:
    """Add LibreTranslate's routes."""

    @app.post(
        "/translate",
        response_model=Translated,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=body_of(Translate, alternatives=service.config.alternatives),
    )
    async def translate(request: Request) -> Translated:
        """Translate a text, or a list of texts."""
        service.require("translate")
        fields = Translate.of(request.state.fields)
        check_size(fields.q, service.config)
        check_alternatives(fields.alternatives, service.config)
        answers = await service.admission.work(
            request.receive, lambda cancel_token: service.translate(fields, cancel_token)
        )
        return _translated(fields, answers)

    @app.post("/detect", response_model=list[Detected], responses=ERRORS, openapi_extra=body_of(Detect))
    async def detect(request: Request) -> list[Detected]:
        """Which of the served languages a text is in, the most probable first."""
        service.require("translate")
        fields = Detect.of(request.state.fields)
        check_size(fields.q, service.config)
        directions = service.directions
        ranked = directions.detector.detect(fields.q) or [(directions.codes[0], 0.0)]
        return [Detected(confidence=confidence, language=language) for language, confidence in ranked]

    @app.get("/languages", response_model=list[Language], responses=ERRORS)
    @app.post("/languages", response_model=list[Language], responses=ERRORS)
    async def languages() -> list[Language]:
        """The languages, and what each can be translated to."""
        directions = service.directions
        return [Language(code=code, name=name_of(code), targets=directions.targets(code)) for code in directions.codes]

    @app.get("/health", response_model=HealthStatus, response_model_exclude_none=True, responses=ERRORS)
    async def healthy() -> HealthStatus:
        """Whether the models work."""
        if (problem := health.problem) is not None:
            raise HttpError(503, problem)
        return HealthStatus(status="ok")

    @app.get("/frontend/settings", responses=ERRORS)
    async def settings() -> dict[str, Any]:
        """Settings for a web page."""
        return _settings(service, key_required=key_required)

    @app.post("/suggest", responses=ERRORS)
    async def suggest() -> None:
        """Switched off: nothing that is sent is kept."""
        raise HttpError(403, CLOSED["/suggest"])

    @app.post("/translate_file", responses=ERRORS)
    async def translate_file() -> None:
        """Switched off: only texts are translated."""
        raise HttpError(403, CLOSED["/translate_file"])


def check_size(q: str | list[str], config: ServeConfig) -> None:
    """Refuse too many texts or characters."""
    texts = [q] if isinstance(q, str) else q
    if len(texts) > config.texts:
        raise HttpError(400, f"Invalid request: request ({len(texts)}) exceeds text limit ({config.texts})")
    size = sum(len(text) for text in texts)
    if size > config.characters:
        raise HttpError(400, f"Invalid request: request ({size}) exceeds text limit ({config.characters})")


def check_alternatives(count: int | None, config: ServeConfig) -> None:
    """Refuse more alternatives than the server allows."""
    if count is not None and count > config.alternatives:
        raise HttpError(400, f"Invalid request: alternatives parameter must be <= {config.alternatives}")


def _translated(fields: Translate, answers: list[Answer]) -> Translated:
    """A list for a list, even of one; else a single value."""
    found: dict[str, list[Any]] = {"translatedText": [answer.text for answer in answers]}
    if fields.alternatives:
        found["alternatives"] = [answer.alternatives for answer in answers]
    if fields.source.lower() == AUTO:
        found["detectedLanguage"] = [
            Detected(language=language, confidence=confidence) for language, confidence in (a.language for a in answers)
        ]
    if any(answer.truncated for answer in answers):
        found["truncated"] = [answer.truncated for answer in answers]
    if fields.details and fields.format == "text":
        found["details"] = [_details(answer) for answer in answers]
    return Translated.model_validate(
        {name: each[0] if isinstance(fields.q, str) else each for name, each in found.items()}
    )


def _details(answer: Answer) -> Details:
    one = answer.translation
    if one is None:
        return Details(score=0.0, tokens=[], source_tokens=[], alignment=[], segments=[])
    return Details.of(one)


def _settings(service: Service, *, key_required: bool) -> dict[str, Any]:
    config, served = service.config, service.directions.served
    source, target = (served[0].source, served[0].target) if served else ("", "")
    return {
        "charLimit": config.characters,
        "frontendTimeout": 500,
        "deadline": config.deadline,  # ours: seconds after which a request is given up
        "apiKeys": key_required,
        "keyRequired": key_required,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
    }

"""The OpenAPI document: what FastAPI finds out by itself, and by what each route is grouped and guarded."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from heed.serving.entrance import PUBLIC

_GROUPS = {
    "translation": ("Texts in other languages, as LibreTranslate has it.", "/translate /detect /languages"),
    "while translating": ("Word by word, and other ways to go on.", "/translate/stream /alternatives"),
    "other models": ("Texts written, labelled, or made into vectors.", "/generate /classify /embed"),
    "looking inside": ("What happens in a model.", "/look"),
    "the server": ("What it has, and how it is.", "/models /metrics /health /health/ready /frontend/settings"),
    "switched off": ("LibreTranslate has these; here they answer 403.", "/suggest /translate_file"),
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key as Authorization: Bearer …"},
    "api_key": {"type": "apiKey", "in": "query", "name": "api_key", "description": "A key in the address or the body."},
}


def describe(app: FastAPI, *, key_required: bool) -> None:
    """Have the application answer `/spec` with tags and, where keys are in use, with the routes that need one."""
    tags = {path: name for name, (_, paths) in _GROUPS.items() for path in paths.split()}

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            found["tags"] = [{"name": name, "description": text} for name, (text, _) in _GROUPS.items()]
            for path, methods in found["paths"].items():
                for operation in methods.values():
                    operation["tags"] = [tags[path]]
                    if key_required and path not in PUBLIC and tags[path] != "switched off":
                        operation["security"] = [{name: []} for name in _KEYS]
            if key_required:
                found.setdefault("components", {})["securitySchemes"] = _KEYS
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation has it

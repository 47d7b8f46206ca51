"""Web pages for browsers: translation, language models and classifiers, and the API documentation at /docs.

The first two are static files in `page/`: HTML, style sheets and ES modules without a build step. Their content
security policy allows files of this server and, for the frame that shows the report of `heed look`, the report's script
and style by their hashes. /docs is generated from the OpenAPI document, so it loads nothing from other servers.
"""

from html import escape
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from heed.interpret.report import csp_hash, style_and_script
from heed.serving.http_errors import HttpError
from heed.serving.security_middleware import POLICY

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_API_STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
code { font: 14px/1.5 ui-monospace, monospace }
h3 code { font-size: 17px; font-weight: 600 }
h2 { margin-top: 3rem }
h3 { margin: 2rem 0 0; border-top: 1px solid color-mix(in srgb, currentcolor 25%, transparent); padding-top: 1rem }
h2 + p, h3 + p { margin-top: 0.3rem }
td { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0 }
td:not(:last-child) { white-space: nowrap }
td:nth-child(2) { opacity: 0.75 }
@media (max-width: 40rem) {
  td { display: block; padding: 0; white-space: normal }
  tr { display: block; margin: 0.6rem 0 }
}
"""
_LIMITS = {"minimum": "≥ ", "exclusiveMinimum": "> ", "maximum": "≤ ", "exclusiveMaximum": "< "}


def add_routes(app: FastAPI, *, translates: bool) -> None:
    """Add the pages and their files. translates: False serves the page for language models and classifiers at `/`."""
    contents = page_files()
    policy = page_policy()

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        name = "index.html" if translates else "lm-and-classifier.html"
        return _file(name, contents[name], {"Content-Security-Policy": policy})

    @app.get("/lm-and-classifier", include_in_schema=False)
    @app.get("/others", include_in_schema=False)  # its former address
    async def lm_and_classifier() -> Response:
        name = "lm-and-classifier.html"
        return _file(name, contents[name], {"Content-Security-Policy": policy})

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in contents:
            raise HttpError(404, "Not found")
        return _file(name, contents[name], {})

    @app.get("/docs", include_in_schema=False)
    async def api_documentation() -> Response:
        return _file("docs.html", _api_page(app.openapi()).encode(), {})

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return _file("docs.css", _API_STYLE.encode(), {})


def page_files() -> dict[str, bytes]:
    """The contents of the page's files by name; colours and fonts come from the report's style sheet."""
    folder = files("heed.serving") / "page"
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}
    return {**contents, "report.css": style_and_script()[0].encode()}


def page_policy() -> str:
    """The content security policy of all responses, plus the hashes of the report's style and script."""
    style, script = (f"'{csp_hash(text)}'" for text in style_and_script())
    return POLICY.replace("script-src 'self'", f"script-src 'self' {script}").replace(
        "style-src 'self'", f"style-src 'self' {style}"
    )


def _file(name: str, content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type=f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8", headers=headers)


def _api_page(spec: dict[str, Any]) -> str:
    """HTML documentation of every route and its fields, grouped by tag."""
    routes = [
        (route["tags"][0], _route(method.upper(), path, route))
        for path, methods in spec["paths"].items()
        for method, route in methods.items()
    ]
    groups = "".join(
        f"<h2>{escape(tag['name'].capitalize())}</h2><p>{escape(tag['description'])}</p>"
        + "".join(text for name, text in routes if name == tag["name"])
        for tag in spec["tags"]
    )
    title, description = escape(spec["info"]["title"]), escape(spec["info"]["description"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css">'
        '<link rel="icon" href="page/icon.svg">'
        f"<title>{title}: HTTP API</title><h1>{title}: HTTP API</h1><p>{description}</p>"
        '<p>OpenAPI document: <a href="spec">/spec</a>. Fields are sent as JSON, as a form or in the query string; '
        "every error is <code>{&quot;error&quot;: text}</code>.</p>"
        f"{groups}</html>"
    )


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    required = body.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td>"
        f"<td>{escape(_type_name(field))}{'' if name in required else ', optional'}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in body.get("properties", {}).items()
    )
    fields = f"<table>{rows}</table>" if rows else ""
    key = " Needs an API key." if "security" in route else ""
    return f"<h3><code>{method} {escape(path)}</code></h3><p>{escape(route.get('description', ''))}{key}</p>{fields}"


def _type_name(field: dict[str, Any]) -> str:
    """The type of a field and its limits, such as `integer ≥ 0 ≤ 5`."""
    if "anyOf" in field:
        return " or ".join(_type_name(option) for option in field["anyOf"] if option.get("type") != "null")
    if "enum" in field:
        return " | ".join(field["enum"])
    if field["type"] == "array":
        return f"list of {_type_name(field['items'])}"
    limits = [f"{sign}{field[name]:,.10g}" for name, sign in _LIMITS.items() if name in field]
    return " ".join((field["type"], *limits))

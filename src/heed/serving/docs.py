"""The OpenAPI document as a page to read: made here, so nothing is fetched from anywhere."""

from html import escape
from typing import Any

STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
code { font: 14px/1.5 ui-monospace, monospace }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0 }
"""


def page(spec: dict[str, Any]) -> str:
    """Every route, what it takes, and what it answers."""
    routes = "".join(
        _route(method.upper(), path, route)
        for path, methods in spec["paths"].items()
        for method, route in methods.items()
    )
    title, description = escape(spec["info"]["title"]), escape(spec["info"]["description"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/docs.css">'
        '<link rel="icon" href="/page/icon.svg">'
        f"<title>{title}: the interface</title><h1>{title}: the interface</h1><p>{description}</p>"
        '<p>For programs: <a href="/spec">/spec</a> (OpenAPI). Fields are sent as JSON, as a form or in the address; '
        "errors are always <code>{&quot;error&quot;: text}</code>.</p>"
        f"{routes}</html>"
    )


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    required = body.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{'' if name in required else 'optional'}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in body.get("properties", {}).items()
    )
    fields = f"<table>{rows}</table>" if rows else ""
    return f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(route.get('description', ''))}</p>{fields}"

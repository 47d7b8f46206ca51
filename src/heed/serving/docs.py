"""The OpenAPI document as a page to read: made here, so nothing is fetched from anywhere."""

from html import escape
from typing import Any

STYLE = """\
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


def page(spec: dict[str, Any]) -> str:
    """Every route, what it takes, and what it answers, group by group."""
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
        f"<title>{title}: the interface</title><h1>{title}: the interface</h1><p>{description}</p>"
        '<p>For programs: <a href="spec">/spec</a> (OpenAPI). Fields are sent as JSON, as a form or in the address; '
        "errors are always <code>{&quot;error&quot;: text}</code>.</p>"
        f"{groups}</html>"
    )


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    required = body.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td>"
        f"<td>{escape(_kind(field))}{'' if name in required else ', optional'}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in body.get("properties", {}).items()
    )
    fields = f"<table>{rows}</table>" if rows else ""
    key = " Needs a key." if "security" in route else ""
    return f"<h3><code>{method} {escape(path)}</code></h3><p>{escape(route.get('description', ''))}{key}</p>{fields}"


def _kind(field: dict[str, Any]) -> str:
    """What a field may be, in a few words."""
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field:
        return " | ".join(field["enum"])
    if field["type"] == "array":
        return f"list of {_kind(field['items'])}"
    limits = [f"{sign}{field[name]:,.10g}" for name, sign in _LIMITS.items() if name in field]
    return " ".join((field["type"], *limits))

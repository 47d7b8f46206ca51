"""What a browser opens: the page that translates, and the one that describes the interface.

The first is hand-written, in `page/`: one HTML file, style sheets and ES modules, served as they are. Its policy lets
run what is served here and, in the frame that looks inside, the script and the style of the report, which it names by
their hashes: the report stands in the page as the very file that `heed look` writes, and lets nothing in with it.
"""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

from heed.interpret.report import digest, style_and_script
from heed.serving import docs
from heed.serving.guard import POLICY
from heed.serving.problems import Problem

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def add_routes(app: FastAPI, *, translates: bool) -> None:
    """Add the pages and what belongs to them. translates: else the first page is the one of the other models."""
    served = page_files()
    policy = page_policy()

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        name = "index.html" if translates else "others.html"
        return _file(name, served[name], {"Content-Security-Policy": policy})

    @app.get("/others", include_in_schema=False)
    async def others() -> Response:
        return _file("others.html", served["others.html"], {"Content-Security-Policy": policy})

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in served:
            raise Problem(404, "Not found")
        return _file(name, served[name], {})

    @app.get("/docs", include_in_schema=False)
    async def documented() -> Response:
        return _file("docs.html", docs.page(app.openapi()).encode(), {})

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return _file("docs.css", docs.STYLE.encode(), {})


def page_files() -> dict[str, bytes]:
    """All that the page is made of, by name; its colours and letters are the report's."""
    here = files("heed.serving") / "page"
    found = {file.name: file.read_bytes() for file in here.iterdir() if file.name.rpartition(".")[2] in _TYPES}
    return {**found, "report.css": style_and_script()[0].encode()}


def page_policy() -> str:
    """The policy of every answer, and the two texts that a report runs and is styled by."""
    style, script = (f"'{digest(text)}'" for text in style_and_script())
    return POLICY.replace("script-src 'self'", f"script-src 'self' {script}").replace(
        "style-src 'self'", f"style-src 'self' {style}"
    )


def _file(name: str, content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type=f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8", headers=headers)

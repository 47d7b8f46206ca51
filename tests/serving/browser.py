"""A server's page in a browser, and a hundred texts that try to inject code into it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Response, Route

from tests.browser import OpenedPage, opened
from tests.serving.conftest import MANY
from tests.serving.running import Running, serving

_ATTACKS = """
<script>window.harmed=1</script>
<script src=//example.org/x.js></script>
<img src=x onerror=window.harmed=1>
<img src=//example.org/x.png>
<svg onload=window.harmed=1>
<svg><script>window.harmed=1</script></svg>
<svg><animate onbegin=window.harmed=1 attributeName=x dur=1s>
<body onload=alert(1)>
<iframe src=javascript:parent.harmed=1></iframe>
<iframe srcdoc="<script>parent.harmed=1</script>"></iframe>
<object data=javascript:window.harmed=1>
<embed src=//example.org/x.swf>
<link rel=stylesheet href=//example.org/x.css>
<style>@import '//example.org/x.css';</style>
<meta http-equiv=refresh content=0;url=//example.org>
<base href=//example.org/>
<form action=//example.org><input autofocus onfocus=window.harmed=1>
<a href=javascript:window.harmed=1>press</a>
<details open ontoggle=window.harmed=1>
<video><source onerror=window.harmed=1></video>
<math><mtext></form><form><mglyph><style></math><img src onerror=window.harmed=1>
javascript:window.harmed=1
&lt;img src=x onerror=window.harmed=1&gt;
${window.harmed=1}{{constructor.constructor('window.harmed=1')()}}
\\u003cscript\\u003ewindow.harmed=1\\u003c/script\\u003e
""".strip().splitlines()
_CLOSING = ("", '">', "'-alert(1)-'", "--></textarea></script></style></title>")
INJECTIONS = [closing + attack for attack in _ATTACKS for closing in _CLOSING]
HOSTILE_NAME = "<img src=x onerror=window.harmed=1>"


@pytest.fixture(scope="module")
def site(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of two models, English to German and back; the name of the first contains markup."""
    hostile = tmp_path_factory.mktemp("hostile") / HOSTILE_NAME
    shutil.copytree(folders[0], hostile)
    with serving(hostile, folders[1], *MANY) as running:
        yield running


@contextmanager
def open_page(browser: Browser, server: Running, **settings: Any) -> Iterator[Page]:
    """Open the server's page; fails on errors and on requests to other servers."""
    with open_with_complaints(browser, server, **settings) as opened_page:
        yield opened_page.page


def open_with_complaints(browser: Browser, server: Running, **settings: Any) -> AbstractContextManager[OpenedPage]:
    """Like `open_page`, but with the recorded complaints, for tests that cause some on purpose."""
    own_urls = (server.address + "/", f"blob:{server.address}/")
    return opened(browser, server.address, lambda url: url.startswith(own_urls) or url == "about:srcdoc", **settings)


def ignore_complaints(opened_page: OpenedPage, *forgiven: str) -> None:
    """Drop the complaints that a test causes on purpose: the browser logs every error response."""
    opened_page.complaints[:] = [
        complaint for complaint in opened_page.complaints if not any(text in complaint for text in forgiven)
    ]


# Typed text is translated after a pause, pasted text at once.
_PASTE = """(area, text) => {
  area.value = text;
  area.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste" }));
}"""


def translate_on_page(page: Page, text: str) -> str:
    """Paste a text and return its translation, once the page shows it."""

    def is_of_this_text(answer: Response) -> bool:
        return answer.url.endswith("/translate") and (answer.request.post_data_json or {}).get("q") == text

    with page.expect_response(is_of_this_text) as answer:
        page.locator("#text").evaluate(_PASTE, text)
    translation = str(answer.value.json()["translatedText"])
    page.wait_for_function("(text) => document.getElementById('announcement').textContent === text", arg=translation)
    return translation


def wait_for_status(page: Page, text: str) -> None:
    """Wait until the status line of the page contains a text."""
    page.wait_for_function("(text) => document.getElementById('status').textContent.includes(text)", arg=text)


def mock_response(page: Page, route: str, answer: object, status: int = 200, **headers: str) -> None:
    """Let a route return this response instead of the server's."""

    def fulfil(route_call: Route) -> None:
        route_call.fulfill(
            status=status, body=json.dumps(answer), headers={"Content-Type": "application/json", **headers}
        )

    page.route(f"**{route}", fulfil)


def record_requests(page: Page, route: str, event: Any = "request") -> list[dict[str, Any]]:
    """A list that receives the JSON bodies of requests to a route from now on."""
    requests: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith(route):
            requests.append(request.post_data_json or {})

    page.on(event, note)
    return requests

"""Pages opened in Chromium, if it is installed, with their errors, dialogs and requests recorded."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@dataclass
class OpenedPage:
    page: Page
    complaints: list[str] = field(default_factory=list)  # errors, warnings, dialogs, and requests that are not allowed


@contextmanager
def opened(browser: Browser, address: str, allowed: Callable[[str], bool], **settings: Any) -> Iterator[OpenedPage]:
    """Open an address; on exit, fail if there was an error, a dialog or a request that is not allowed."""
    context = browser.new_context(**settings)
    opened_page = OpenedPage(context.new_page())

    def check_request(request: Request) -> None:
        if not allowed(request.url):
            opened_page.complaints.append(f"requested {request.url}")

    def dismiss(dialog: Dialog) -> None:
        opened_page.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.on("request", check_request)
    opened_page.page.on("dialog", dismiss)
    opened_page.page.on("console", lambda message: opened_page.complaints.append(message.text))
    opened_page.page.on("pageerror", lambda error: opened_page.complaints.append(str(error)))
    opened_page.page.goto(address)
    opened_page.page.wait_for_selector("html[data-ready]")
    yield opened_page
    assert opened_page.page.evaluate("window.harmed") is None
    assert opened_page.complaints == []
    context.close()

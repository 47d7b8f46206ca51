"""Chromium, which is not there on every machine: pages opened in it, and everything held against them."""

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
class Opened:
    page: Page
    complaints: list[str] = field(default_factory=list)  # errors, warnings, dialogs, and requests for anything else


@contextmanager
def opened(browser: Browser, address: str, allowed: Callable[[str], bool], **settings: Any) -> Iterator[Opened]:
    """A page in a browser; by its end nothing may have gone wrong, and nothing been asked for that is not allowed."""
    context = browser.new_context(**settings)
    found = Opened(context.new_page())

    def asked(request: Request) -> None:
        if not allowed(request.url):
            found.complaints.append(f"asked for {request.url}")

    def shown(dialog: Dialog) -> None:
        found.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.on("request", asked)
    found.page.on("dialog", shown)
    found.page.on("console", lambda said: found.complaints.append(said.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.goto(address)
    found.page.wait_for_selector("html[data-ready]")
    yield found
    assert found.page.evaluate("window.harmed") is None
    assert found.complaints == []
    context.close()

"""The page for language models, masked LMs and classifiers, in a real browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from heed.serving.limits import add_key
from heed.serving.pages import page_files
from tests import browser as browsing
from tests.serving.browser import HOSTILE_NAME, INJECTIONS, open_page, wait_for_status
from tests.serving.conftest import MANY
from tests.serving.folders import LABELS, make_folder, make_lm_or_classifier
from tests.serving.running import Running, serving

needs_chromium = browsing.needs_chromium
browser = browsing.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of three models; the name of one contains markup."""
    folder = tmp_path_factory.mktemp("others")
    models = [make_lm_or_classifier(folder / "lm", "language-model"), make_lm_or_classifier(folder / "c", "classify")]
    hostile = folder / HOSTILE_NAME
    shutil.copytree(make_lm_or_classifier(folder / "m", "masked"), hostile)
    with serving(*models, hostile, *MANY) as running:
        yield running


def test_the_page_has_no_inline_code_and_sets_no_inner_html() -> None:
    page = page_files()["lm-and-classifier.html"].decode()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page)
    scripts = b"".join(content for name, content in page_files().items() if name.endswith(".js")).decode()
    assert "innerHTML" not in scripts


@needs_chromium
def test_the_page_continues_a_text_as_generate_does(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        assert page.inner_text("#task-description") == "A language model: it continues your text."
        page.fill("#text", "The cat")
        page.click("#run")
        page.wait_for_selector("#panes:not(.waiting)")
        generated = site.post("/generate", prompt="The cat", model="lm").json()["text"]
        assert page.text_content("#output") == generated
        assert page.text_content("#output .prompt") == "The cat"
        assert '"prompt":"The cat"' in page.inner_text("#curl-command")
        page.fill("#text", "a" * 70)
        page.keyboard.press("Control+Enter")
        wait_for_status(page, "the prompt has 70 tokens, more than the limit of 60")


@needs_chromium
def test_labels_and_masked_predictions_are_shown_as_text(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        page.select_option("#model", "c")
        assert page.is_disabled("#run")
        page.fill("#text", "A dog runs.")
        page.click("#run")
        page.wait_for_selector(".probabilities")
        probabilities = site.post("/classify", q="A dog runs.").json()["probabilities"]
        ranked = sorted(LABELS, key=lambda label: -probabilities[label])
        assert page.locator(".probabilities th").all_inner_texts() == ranked
        page.select_option("#model", HOSTILE_NAME)
        for text in INJECTIONS[::12]:
            page.fill("#text", text[:60])
            with page.expect_response("**/look"):
                page.click("#run")
            page.wait_for_selector(".probabilities th")
        page.wait_for_selector("#panes:not(.waiting)")
        assert page.locator("#output img, #output script").count() == 0


@needs_chromium
def test_look_opens_the_report_of_the_text(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        page.select_option("#model", "c")
        page.fill("#text", "A dog runs.")
        page.click("#look")
        frame = page.frame_locator("#look-frame")
        frame.locator("html[data-ready]").wait_for()
        assert frame.locator("#source").inner_text() == "A dog runs."
        page.click("#look-close")


@needs_chromium
def test_the_translation_page_links_to_the_page_of_the_other_models(browser: Browser, tmp_path: Path) -> None:
    models = make_folder(tmp_path / "ende"), make_lm_or_classifier(tmp_path / "c", "classify")
    with serving(*models, *MANY) as mixed, open_page(browser, mixed) as page:
        page.click("#lm-and-classifier-link")
        page.wait_for_selector("html[data-ready] #model option", state="attached")
        assert page.locator("#model option").all_inner_texts() == ["c: classify"]


@needs_chromium
def test_the_page_prompts_for_a_key_if_one_is_required(browser: Browser, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.txt")
    with serving(make_lm_or_classifier(tmp_path / "c", "classify"), "--keys", tmp_path / "keys.txt") as guarded:
        assert guarded.post("/classify", q="A").status_code == 400
        with open_page(browser, guarded) as page:
            assert page.inner_text("#status") == "Enter an API key above."
            page.fill("#key", key)
            page.keyboard.press("Enter")
            page.wait_for_selector("#model option", state="attached")
            page.fill("#text", "A dog")
            page.click("#run")
            page.wait_for_selector(".probabilities")

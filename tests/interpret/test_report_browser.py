"""The report in Chromium, if it is installed."""

import copy
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from heed import Trace
from heed.interpret.report import html_report
from heed.interpret.saving import trace_document
from heed.interpret.trace import look
from tests import browser as browsing
from tests.browser import OpenedPage
from tests.interpret.translators import small_model, small_translator

VIEWS = ["overview", "heads", "all-heads", "steps", "positions", "search", "output"]
HOSTILE = [
    "</script><script>window.harmed=1</script>",
    "<!--<script>",
    "<img src=x onerror=window.harmed=1>",
    "\"'`${window.harmed=1}",
    "\u202eright to left\u2066",
    "שלום",
    "\u2028\x00\x1b[31m",
    "javascript:window.harmed=1",
]

pytestmark = browsing.needs_chromium
browser = browsing.browser


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_translator().look("a dog runs", "EIN HUND LÄUFT")


def opened(browser: Browser, path: Path, **settings: Any) -> AbstractContextManager[OpenedPage]:
    """A report in a browser; any request but for the report itself fails the test."""
    return browsing.opened(browser, path.as_uri(), lambda address: address == path.as_uri(), **settings)


def saved(tmp_path: Path, trace: Trace, data: dict[str, Any] | None = None) -> Path:
    path = tmp_path / "look.html"
    path.write_bytes(html_report(trace, data or trace_document(trace)))
    return path


def test_every_view_opens_by_click_and_by_keyboard(browser: Browser, tmp_path: Path, trace: Trace) -> None:
    with opened(browser, saved(tmp_path, trace)) as opened_page:
        for view in [*VIEWS[1:], VIEWS[0]]:
            opened_page.page.click(f"#tab-{view}")
            assert visible(opened_page.page) == [f"view-{view}"]
        for view in [*VIEWS[1:], VIEWS[0]]:
            opened_page.page.keyboard.press("ArrowRight")
            assert visible(opened_page.page) == [f"view-{view}"]
            assert opened_page.page.evaluate("document.activeElement.id") == f"tab-{view}"
            assert opened_page.page.get_attribute(f"#tab-{view}", "aria-selected") == "true"
        opened_page.page.keyboard.press("End")
        assert visible(opened_page.page) == ["view-output"]


def visible(page: Page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('.view')].filter((view) => view.offsetHeight).map((view) => view.id)"
    )


def test_blocks_maps_and_links_open_the_view_they_name(browser: Browser, tmp_path: Path, trace: Trace) -> None:
    with opened(browser, saved(tmp_path, trace)) as opened_page:
        page = opened_page.page
        page.focus('[data-name="decoder.2.cross"]')
        page.keyboard.press("Enter")
        assert "Decoder, layer 2: Cross-attention" in page.inner_text("#view-overview")
        assert "2 × 4 × 11" in page.inner_text("#view-overview")  # heads, target rows, source columns
        page.click("text=follow a token through it")
        assert chosen(page, "steps") == ["cross", "2", "1", "1"]
        page.click("#tab-all-heads")
        page.click('[aria-label^="decoder layer 3, head 2"]')
        assert chosen(page, "heads") == ["decoder", "3", "2"]
        page.keyboard.press("Tab")  # to the radio buttons of attention kinds, which the arrow keys change
        page.keyboard.press("ArrowLeft")
        assert chosen(page, "heads")[0] == "encoder"


def chosen(page: Page, view: str) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll('#view-{view} input:checked')].map((input) => input.value)")


def test_focusing_a_token_shows_only_its_lines_and_what_it_reads_and_predicts(
    browser: Browser, tmp_path: Path, trace: Trace
) -> None:
    with opened(browser, saved(tmp_path, trace)) as opened_page:
        opened_page.page.click("#tab-heads")
        everything = opened_page.page.locator("#view-heads .attention-lines path").count()
        rows = opened_page.page.locator("#view-heads .tokens.queries button")
        assert rows.all_inner_texts() == ["⟨s⟩\n→ EIN", "EIN\n→ HUND", "HUND\n→ LÄUFT", "LÄUFT\n→ ⟨/s⟩"]
        rows.nth(1).focus()
        assert 0 < opened_page.page.locator("#view-heads .attention-lines path").count() < everything
        assert "EIN\u2069, from which \u2068HUND\u2069 is predicted, attends to" in opened_page.page.inner_text(
            "#view-heads"
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "pre", "activation": "gelu"},
        {"norm": "post", "positions": "learned"},
        {"norm": "sandwich", "positions": "rotary", "activation": "swiglu"},
    ],
    ids=lambda settings: settings["norm"],
)
def test_activations_computed_in_the_page_equal_the_models(
    browser: Browser, tmp_path: Path, settings: dict[str, Any]
) -> None:
    trace = small_translator(**settings).look("a dog runs", "EIN HUND LÄUFT")
    leaving = "norm" if settings["norm"] == "post" else "residual"
    expressions = {  # by part of the model: the JavaScript expression of one of its rows
        f"{path}.{name}": f"attend('{kind}', {path.split('.')[1]}, 2, 3).{way}"
        for kind, path in (("encoder", "encoder.2.self"), ("decoder", "decoder.3.self"), ("cross", "decoder.3.cross"))
        for name, way in (("weights", "weights"), ("heads", "output"), ("scaled", "scaled"))
    }
    expressions |= {"decoder.2.cross.concat": "concatenatedHeads('cross', 2, 3)"}
    expressions |= {f"encoder.1.feed_forward.{leaving}": "layerInput('encoder', 3, 2)"}
    expressions |= {f"decoder.2.feed_forward.{leaving}": "layerInput('decoder', 3, 3)"}
    with opened(browser, saved(tmp_path, trace)) as opened_page:
        opened_page.page.click("#tab-steps")
        rows = opened_page.page.evaluate(f"[{','.join(expressions.values())}].map((row) => [...row])")
    parts = trace.parts(list(expressions))
    for name, row in zip(expressions, rows, strict=True):
        expected = parts[name].values[..., 3, :].reshape(-1, len(row))[-1]  # of the second head, or of all heads
        np.testing.assert_allclose(row, expected, atol=0.01 * float(np.abs(expected).max()), err_msg=name)


def test_hostile_tokens_are_shown_as_text_and_do_nothing(browser: Browser, tmp_path: Path, trace: Trace) -> None:
    data = with_hostile_tokens(trace_document(trace))
    with opened(browser, saved(tmp_path, trace, data)) as opened_page:
        for view in VIEWS:
            opened_page.page.click(f"#tab-{view}")
        opened_page.page.click("#tab-heads")
        texts = opened_page.page.locator("#view-heads .tokens:not(.queries) bdi").all_inner_texts()
        assert texts[:3] == [token.replace(" ", "␣") for token in HOSTILE[:3]]
        assert texts[4] == "‹202E›right␣to␣left‹2066›"
        assert texts[5] == "שלום"
        assert texts[6] == "‹2028›‹0000›‹001B›[31m"
        assert opened_page.page.locator("img").count() == 0
        assert opened_page.page.locator("script").count() == 2


def with_hostile_tokens(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of a trace document whose tokens, candidates and texts are all hostile."""
    data = copy.deepcopy(data)
    for side in ("source", "target", "predicted"):
        data[side]["tokens"] = [HOSTILE[index % len(HOSTILE)] for index in range(len(data[side]["tokens"]))]
        data[side]["text"] = " ".join(HOSTILE)
    candidates = [candidate for row in data["top"] for candidate in row]
    candidates += [candidate for layer in data["lens"]["top"] for row in layer for candidate in row]
    for index, item in enumerate([*candidates, *data["beam"]["nodes"]]):
        item["token"] = HOSTILE[index % len(HOSTILE)]
    return data


@pytest.mark.parametrize("kind", ["encoder-decoder", "encoder", "decoder"])
def test_no_view_is_wider_than_a_phone(browser: Browser, tmp_path: Path, kind: str) -> None:
    trace = small_translator(kind=kind).look("a dog runs a dog runs a dog" if kind != "decoder" else "EIN HUND SIEHT")
    phone = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark"}
    with opened(browser, saved(tmp_path, trace), **phone) as opened_page:
        assert opened_page.page.evaluate("document.documentElement.dataset.theme") == "dark"
        for tab in opened_page.page.locator("[role=tab]").all():
            tab.click()
            assert opened_page.page.evaluate("document.documentElement.scrollWidth") == 360, tab.inner_text()
        opened_page.page.click("#theme")
        assert opened_page.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert (opened_page.page.locator("#tab-search").count() == 1) == (kind == "encoder-decoder")


@pytest.mark.parametrize("labels", [None, 3])
def test_an_encoder_only_model_shows_its_predictions_and_hostile_tokens_as_text(
    browser: Browser, tmp_path: Path, labels: int | None
) -> None:
    trace = look(small_model(kind="encoder", labels=labels), "a dog runs")
    with opened(browser, saved(tmp_path, trace, with_hostile_candidates(trace_document(trace)))) as opened_page:
        page = opened_page.page
        assert "The encoder reads the whole text at once" in page.inner_text("#view-overview")
        page.click('[data-name="logits"]')
        for tab in page.locator("[role=tab]").all():
            tab.click()
            assert page.locator(".view:not([hidden]) .panel").count() or tab.inner_text() == "Heads"
        output = page.inner_text("#view-output")
        assert "<img" in output
        if labels:
            assert "Attribution of" in output
            assert page.locator("#view-output tbody tr").count() == 3 + 11
        else:
            assert "Most probable tokens with this one masked" in output
            page.locator("#view-output input").last.check()  # EOS, which is never masked
            assert "with this one masked" not in page.inner_text("#view-output .columns")
        assert page.locator("img").count() == 0


def with_hostile_candidates(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of an encoder's trace document whose predicted tokens or labels are hostile."""
    data = copy.deepcopy(data)
    for row in data["top"] + (data["holes"] or {"top": []})["top"]:
        for candidate in row:
            candidate |= {"token": "<img src=x onerror=window.harmed=1>"}
    return data

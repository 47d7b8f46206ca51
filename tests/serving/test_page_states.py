"""The translation page with missing models, keys or storage, refused requests, a small screen and injected markup."""

import re

from playwright.sync_api import Browser

from tests import browser as browsing
from tests.serving import browser as pages
from tests.serving.browser import (
    HOSTILE_NAME,
    INJECTIONS,
    ignore_complaints,
    mock_response,
    open_page,
    open_with_complaints,
    record_requests,
    translate_on_page,
    wait_for_status,
)
from tests.serving.running import Running

pytestmark = browsing.needs_chromium
browser, site = browsing.browser, pages.site
PHONE = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark"}


def test_a_language_pair_without_a_model_is_named_and_not_requested(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        languages = site.get("/languages").json()
        mock_response(page, "/languages", [*languages, {"code": "fr", "name": "French", "targets": ["fr"]}])
        page.reload()
        page.wait_for_selector("#source-language option[value=fr]", state="attached")
        requests = record_requests(page, "/translate")
        page.select_option("#source-language", "fr")
        page.fill("#text", "Un chien")
        wait_for_status(page, "No model translates French to German. Available: English to German, German to English.")
        page.select_option("#target-language", "fr")
        wait_for_status(page, "No model translates French to French.")
        page.select_option("#source-language", "auto")
        wait_for_status(page, "No model translates to French.")
        assert requests == []


def test_characters_are_counted_as_on_the_server_and_overlong_text_is_not_sent(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        assert page.inner_text("#character-count") == "0 / 5,000"
        translate_on_page(page, "😀😀 é")
        assert page.inner_text("#character-count") == "4 / 5,000"
        requests = record_requests(page, "/translate")
        page.fill("#text", "😀" * 5001)
        wait_for_status(page, "The text exceeds 5,000 characters.")
        assert page.inner_text("#character-count") == "5,001 / 5,000"
        assert page.get_attribute("#text", "aria-invalid") == "true"
        assert requests == []
        assert page.inner_text("#translation") == "The translation appears here"


def test_a_refused_look_shows_the_reason(browser: Browser, site: Running) -> None:
    with open_with_complaints(browser, site) as opened_page:
        translate_on_page(opened_page.page, "The old dog sees the house.")
        refusal = {"error": "Invalid request: 71 tokens exceed the limit of 64 for a trace"}
        mock_response(opened_page.page, "/look", refusal, 400)
        opened_page.page.click("#look")
        opened_page.page.wait_for_selector("#look-status:text('71 tokens exceed the limit of 64 for a trace')")
        assert opened_page.page.locator("#look-frame").is_hidden()
        ignore_complaints(opened_page, "400 (Bad Request)")


def test_a_key_is_prompted_for_sent_and_kept_for_this_tab_only(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        assert page.is_hidden("#key-form")
        mock_response(page, "/frontend/settings", site.get("/frontend/settings").json() | {"keyRequired": True})
        page.reload()
        page.wait_for_selector("#key-form", state="visible")
        page.get_by_label("API key").fill("a-secret")
        with page.expect_request("**/translate") as request:
            page.fill("#text", "A dog")
        assert request.value.headers["authorization"] == "Bearer a-secret"
        assert page.evaluate("[localStorage.length, Object.values({...sessionStorage})]") == [0, ["a-secret"]]
        page.click("summary")
        assert "a-secret" not in page.inner_text("#curl-command")
        assert "Bearer $HEED_KEY" in page.inner_text("#curl-command")
        page.reload()
        page.wait_for_selector("#key-form", state="visible")
        assert page.input_value("#key") == "a-secret"


def test_a_missing_or_wrong_key_is_reported(browser: Browser, site: Running) -> None:
    with open_with_complaints(browser, site) as opened_page:
        page = opened_page.page
        mock_response(page, "/frontend/settings", site.get("/frontend/settings").json() | {"keyRequired": True})
        mock_response(page, "/translate", {"error": "Please contact the server operator to get an API key"}, 400)
        page.reload()
        page.wait_for_selector("#key-form", state="visible")
        page.fill("#text", "A dog")
        wait_for_status(page, "Enter an API key above to translate.")
        mock_response(page, "/translate", {"error": "Invalid API key"}, 403)
        page.keyboard.type("wrong")
        wait_for_status(page, "Unknown API key.")
        ignore_complaints(opened_page, "400 (Bad Request)", "403 (Forbidden)")


def test_the_colour_theme_is_the_systems_until_chosen(browser: Browser, site: Running) -> None:
    with open_page(browser, site, color_scheme="dark") as page:
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == "dark"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="light")
        page.wait_for_function(f"() => {theme} === 'light'")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.get_by_role("button", name="switch to dark").click()
        assert page.evaluate(theme) == "dark"
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate(theme) == "dark"
        page.click("#theme")
        assert page.evaluate("[document.documentElement.dataset.theme, localStorage.length]") == ["light", 0]


def test_an_unreachable_server_is_retried_until_it_responds(browser: Browser, site: Running) -> None:
    with open_with_complaints(browser, site) as opened_page:
        page = opened_page.page
        translate_on_page(page, "A dog")
        page.context.set_offline(True)
        page.fill("#text", "The cat")
        wait_for_status(page, "The server does not respond. Retrying…")
        assert page.locator("#panes.stale").count() == 1
        assert page.input_value("#text") == "The cat"
        page.context.set_offline(False)
        page.wait_for_function("() => document.getElementById('status').textContent === ''")
        expected = site.post("/translate", q="The cat", source="en", target="de").json()["translatedText"]
        assert page.inner_text("#announcement") == expected
        page.route("**/frontend/settings", lambda route: route.abort())  # unreachable when the page is opened
        page.reload()
        wait_for_status(page, "The server does not respond.")
        page.unroute("**/frontend/settings")
        page.click("text=retry now")
        page.wait_for_selector("html[data-ready]")
        ignore_complaints(opened_page, "net::ERR_")


def test_truncation_is_reported_and_long_texts_are_translated_in_full(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        text = "The cat. " * 40
        fields = {"q": text, "source": "en", "target": "de"}
        response = site.post("/translate", **fields).json()
        assert translate_on_page(page, text) == response["translatedText"]
        assert page.inner_text("#status") == ""
        mock_response(page, "/translate", response | {"truncated": True, "details": NO_DETAILS})
        page.fill("#text", "A cat")
        wait_for_status(page, "Truncated: the output")
        assert page.locator("#status.error").count() == 1


NO_DETAILS: dict[str, object] = {"score": 0, "tokens": [], "source_tokens": [], "alignment": [], "segments": []}


def test_a_request_without_a_response_times_out_and_is_retried(browser: Browser, site: Running) -> None:
    with open_with_complaints(browser, site) as opened_page:
        page = opened_page.page
        mock_response(
            page, "/frontend/settings", site.get("/frontend/settings").json() | {"deadline": -4.75}
        )  # the page adds 5 s
        page.reload()
        page.wait_for_selector("html[data-ready]")
        page.route("**/translate", lambda _: None)
        page.fill("#text", "A dog")
        wait_for_status(page, "The server has not responded for 0.25 s. Retrying…")
        page.unroute("**/translate")
        page.wait_for_selector(".word")
        page.route("**/look", lambda _: None)
        page.click("#look")
        page.wait_for_selector("#look-status:text('The server has not responded for 0.25 s.')")


BARE = """
delete Intl.Segmenter;
for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
"""


def test_without_storage_and_segmenter_the_page_says_so_and_works(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        assert page.is_hidden("#browser-notice")
        mock_response(page, "/frontend/settings", site.get("/frontend/settings").json() | {"keyRequired": True})
        page.add_init_script(BARE)
        page.reload()
        page.wait_for_selector("#key-form", state="visible")
        notice = page.inner_text("#browser-notice")
        assert "This browser blocks storage" in notice
        assert "no Intl.Segmenter" in notice
        page.fill("#key", "a-secret")
        with page.expect_request("**/translate") as request:
            page.fill("#text", "A dog")
        assert request.value.headers["authorization"] == "Bearer a-secret"
        page.wait_for_selector(".word")
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_without_javascript_the_page_says_so_at_its_top(browser: Browser, site: Running) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for route in ("/", "/lm-and-classifier"):
        page.goto(site.address + route)
        assert "This page needs JavaScript, which is disabled in this browser." in page.inner_text("body")
        box = page.locator(".notice").first.bounding_box()
        assert box is not None
        assert box["y"] < 150
        assert page.is_hidden("main")
        page.click(".notice a")
        assert page.url == f"{site.address}/docs"
    context.close()


def test_example_sentences_of_the_model_are_shown_while_the_text_is_empty(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        page.wait_for_selector("footer :text('parameters')")
        assert page.is_hidden("#example-sentences")  # these models have none
        model = {"name": "m", "source": "en", "target": "de", "parameters": 1, "beam": 1, "max_tokens": 1}
        trained = {"texts": [{"name": "train.tsv", "pairs": 60000}], "steps": 900}
        mock_response(page, "/models", [model | {"examples": ["A dog", "<b>A cat</b>"], "trained": trained}])
        page.reload()
        page.wait_for_selector(".example-sentence")
        assert page.locator(".example-sentence").all_inner_texts() == ["A dog", "<b>A cat</b>"]
        assert "trained on train.tsv (60,000 pairs), 900 steps." in page.inner_text("#model-summary")
        assert '"q":"A dog"' in (page.text_content("#curl-command") or "")
        page.get_by_role("button", name="<b>A cat</b>").click()
        page.wait_for_selector(".word")
        assert page.input_value("#text") == "<b>A cat</b>"
        assert page.is_hidden("#example-sentences")
        page.click("#clear")
        assert page.locator(".example-sentence").count() == 2
        page.select_option("#target-language", "en")  # another model's direction
        page.wait_for_selector("#example-sentences", state="hidden")


def test_responses_429_and_503_are_retried_and_other_errors_shown(browser: Browser, site: Running) -> None:
    with open_with_complaints(browser, site) as opened_page:
        page = opened_page.page
        mock_response(
            page, "/translate", {"error": "Slowdown: more than 9 requests per minute"}, 429, **{"Retry-After": "0.2"}
        )
        page.fill("#text", "A dog")
        wait_for_status(page, "Too many requests. Retrying in 0.2 s.")
        mock_response(
            page, "/translate", {"error": "Too busy: 128 requests are queued or running"}, 503, **{"Retry-After": "0.2"}
        )
        wait_for_status(page, "Too busy: 128 requests are queued or running. Retrying in 0.2 s.")
        page.unroute("**/translate")
        page.wait_for_selector(".word")
        assert "Retrying" not in page.inner_text("#status")
        mock_response(page, "/translate", {"error": "Invalid request: no <b>luck</b>"}, 400)
        page.fill("#text", "A cat")
        wait_for_status(page, "no <b>luck</b>")
        page.unroute("**/translate")
        page.route("**/translate", lambda route: route.fulfill(status=502, body="<html>of a proxy"))
        page.fill("#text", "A bird")
        wait_for_status(page, "The server responds 502")
        ignore_complaints(opened_page, "Failed to load resource: the server responded with a status of")


def test_every_control_has_an_accessible_name_and_the_page_fits_a_phone(browser: Browser, site: Running) -> None:
    with open_page(browser, site, **PHONE) as page:
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) == 360
        translate_on_page(page, "dogs" * 15)
        page.click("summary")
        assert page.evaluate(width) == 360
        mock_response(
            page, "/alternatives", {"alternatives": [{"text": "dogs " * 99, "next": "dogs" * 20, "score": 0}]}
        )
        page.locator(".word").last.click()
        page.wait_for_selector("#alternatives:popover-open")
        box = page.locator("#alternatives").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        page.keyboard.press("Escape")
        snapshot = page.locator("body").aria_snapshot()
        for element in (
            'heading "heed translate"',
            'combobox "From"',
            'button "Swap languages"',
            'combobox "To"',
            'textbox "Text to translate"',
            'group "Translation, word by word"',
            'button "look inside"',
            'button "copy"',
            "status",
        ):
            assert element in snapshot
        nameless = [line for line in snapshot.splitlines() if re.search(r"- (button|combobox|textbox|link)(:|$)", line)]
        assert nameless == []
        page.click("#look")
        page.frame_locator("#look-frame").locator("html[data-ready]").wait_for(state="attached")
        assert page.evaluate(width) == 360


def test_a_hundred_injections_as_source_text_are_not_executed(browser: Browser, site: Running) -> None:
    assert len(set(INJECTIONS)) == 100
    with open_page(browser, site) as page:
        for text in ("\n".join(INJECTIONS[at : at + 5]) for at in range(0, 100, 5)):
            translate_on_page(page, text)
            for term in page.locator(".word").all()[:1]:  # some translations have no words
                term.hover()
            assert page.input_value("#text") == text
            assert page.text_content("#highlights") == f"{text}\u200b"
        assert page.locator("body img, body script, body style, body link").count() == 0
        translate_on_page(page, INJECTIONS[8])
        page.click("#look")
        page.frame_locator("#look-frame").locator("html[data-ready]").wait_for(state="attached")


def test_a_hundred_injections_as_tokens_and_names_are_not_executed(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        page.wait_for_selector("footer :text('onerror')")
        assert page.inner_text("#model-summary").startswith(f"{HOSTILE_NAME}: English to German")  # a folder's name
        tokens = [f" {text}" for text in INJECTIONS]
        details = {"score": 0, "tokens": tokens, "source_tokens": ["A"], "alignment": [[0, at] for at in range(100)]}
        details["segments"] = [{"source": [0, 1], "target": [0, len(" ".join(INJECTIONS))]}]
        model = {"source": "en", "target": "de", "parameters": 1, "beam": 1, "max_tokens": 1}
        mock_response(page, "/translate", {"translatedText": " ".join(INJECTIONS), "details": details})
        offers = [{"text": text, "next": text, "score": 0, "details": details} for text in INJECTIONS]
        mock_response(page, "/alternatives", {"alternatives": offers})
        mock_response(page, "/models", [{"name": text, **model} for text in INJECTIONS])
        mock_response(
            page,
            "/languages",
            [{"code": "en", "name": INJECTIONS[0], "targets": ["de"]}, *site.get("/languages").json()],
        )
        page.reload()
        page.wait_for_selector("html[data-ready]")
        translate_on_page(page, "A")
        page.locator(".word").first.click()
        page.wait_for_selector("#alternatives:popover-open")
        assert page.locator("[role=option]").count() == 100
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        assert page.inner_text("#announcement") == INJECTIONS[-1]
        assert all(text in page.inner_text("#model-summary") for text in INJECTIONS)
        assert page.locator("body img, body script, body style, body link, body svg:not(#swap svg)").count() == 0

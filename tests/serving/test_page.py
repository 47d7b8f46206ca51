"""The translation page of `heed serve` in a real browser."""

import json
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from heed.interpret.report import csp_hash, style_and_script
from heed.serving.pages import page_files
from tests import browser as browsing
from tests.serving import browser as pages
from tests.serving.browser import open_page, record_requests, translate_on_page, wait_for_status
from tests.serving.running import Running, wait_until

needs_chromium = browsing.needs_chromium
browser, site = browsing.browser, pages.site
VIEWS = ["overview", "heads", "all-heads", "steps", "positions", "search", "output"]


def test_the_page_is_small_and_refers_to_no_other_site() -> None:
    files = page_files()
    assert sum(map(len, files.values())) + sum(map(len, style_and_script())) < 200_000
    assert {"index.html", "main.js", "page.css", "report.css", "icon.svg"} <= set(files)
    text = b"".join(files.values()).decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|[\"'(=]//", text)
    page = files["index.html"].decode()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page)


def test_the_policy_allows_only_scripts_of_the_server_and_of_the_report(site: Running) -> None:
    policy = dict(part.split(" ", 1) for part in site.get("/").headers["content-security-policy"].split("; "))
    style, script = map(csp_hash, style_and_script())
    assert policy["script-src"] == f"'self' '{script}'"
    assert policy["style-src"] == f"'self' '{style}'"
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    other = site.get("/page/main.js").headers
    assert "sha256" not in other["content-security-policy"]
    assert other["content-type"] == "text/javascript; charset=utf-8"
    for name in ("nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "__init__.py"):
        assert site.get(f"/page/{name}").status_code == 404


@needs_chromium
def test_typed_text_is_translated_after_a_pause(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        requests = record_requests(page, "/translate")
        page.clock.install()
        page.clock.pause_at(time.time() + 60)  # the page's clock now advances only by run_for
        page.focus("#text")
        for letter in "A dog runs.":
            page.clock.run_for(249)
            page.keyboard.type(letter)
        page.clock.run_for(249)
        assert requests == []
        page.clock.run_for(1)
        page.clock.resume()
        page.wait_for_selector(".word")
        expected = site.post("/translate", q="A dog runs.", source="en", target="de").json()["translatedText"]
        assert page.inner_text("#translation") == expected
        assert page.get_attribute("#translation", "lang") == "de"
        assert page.inner_text("#announcement") == expected  # what a screen reader announces
        assert len(requests) == 1
        page.click("#clear")
        page.wait_for_selector("#translation .placeholder")
        assert page.inner_text("#translation") == "The translation appears here"
        assert page.is_disabled("#copy")
        assert page.is_disabled("#look")
        assert len(requests) == 1


@needs_chromium
def test_the_response_of_a_superseded_request_is_not_shown(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:

        def continue_the_second(route: Route) -> None:
            if (route.request.post_data_json or {})["q"] == "The second":
                route.continue_()

        page.route("**/translate", continue_the_second)
        page.fill("#text", "The first")
        page.wait_for_selector(".waiting")
        with page.expect_event("requestfailed") as cancelled:
            second = translate_on_page(page, "The second")
        assert (cancelled.value.post_data_json or {})["q"] == "The first"
        assert page.locator(".waiting").count() == 0
        assert page.inner_text("#translation") == second


@needs_chromium
def test_typing_cancels_the_running_request_without_an_error(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:

        def cancelled_in_work() -> bool:
            """Whether the server was still working when the request was cancelled; this depends on timing."""
            with page.expect_request("**/translate"):
                page.fill("#text", "The old dog sees the house.\n" * 170)
            page.wait_for_timeout(random.randrange(100))
            translate_on_page(page, "A dog")
            return 'route="/translate",status="499"}' in site.get("/metrics").text

        wait_until(cancelled_in_work, "a cancelled request")
        assert site.log_lines() == []


@needs_chromium
def test_languages_are_detected_adjusted_and_swapped(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        page.select_option("#source-language", "auto")
        german = translate_on_page(page, "This is the house that they want to see.")
        assert page.inner_text("#source-language option:checked") == "English, detected"
        page.click("#swap")
        assert page.input_value("#text") == german
        assert (page.input_value("#source-language"), page.input_value("#target-language")) == ("de", "en")
        page.select_option("#target-language", "de")  # the source changes too
        assert page.input_value("#source-language") == "en"
        page.select_option("#source-language", "de")  # the target changes too
        assert page.input_value("#target-language") == "en"
        page.select_option("#target-language", "de")
        page.select_option("#source-language", "auto")
        translate_on_page(page, "Das ist das Haus, das sie mit ihm sehen wollen.")
        wait_for_status(page, "The text is already in German.")
        assert page.is_disabled("#look")
        assert page.is_disabled("#swap")


@needs_chromium
def test_the_translation_is_copied(browser: Browser, site: Running) -> None:
    with open_page(browser, site, permissions=["clipboard-read", "clipboard-write"]) as page:
        translation = translate_on_page(page, "A dog")
        page.click("#copy")
        page.wait_for_selector("#copy:text('copied')")
        assert page.evaluate("navigator.clipboard.readText()") == translation
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as without HTTPS
        page.click("summary")
        page.click("#copy-curl")
        page.wait_for_selector("#copy-curl:text('copied')")
        page.focus("#text")
        page.keyboard.press("Control+a")
        page.keyboard.press("Control+v")
        assert page.input_value("#text").startswith(f"curl {site.address}/translate")


@needs_chromium
def test_hovering_over_a_word_highlights_its_source_words(browser: Browser, site: Running) -> None:
    text = "The cat sees\n a bird\nthis old house"
    with open_page(browser, site) as page:
        translate_on_page(page, text)
        details = site.post("/translate", q=text, source="en", target="de", details=True).json()["details"]
        terms = page.evaluate(WORD_SPANS)
        assert len(terms) > 2
        for number, (start, end) in enumerate(terms):
            page.locator(".word").nth(number).hover()
            marked = page.locator("#highlights mark").all_text_contents()
            assert marked == expected_source_words(text, page.inner_text("#announcement"), details, start, end)
        page.mouse.move(0, 0)
        assert page.locator("#highlights mark").count() == 0
        page.focus("#text")
        for _ in range(3):
            page.keyboard.press("Tab")  # clear, the words, look inside
            if page.evaluate("document.activeElement.className") == "word":
                break
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.textContent") == page.locator(".word").last.inner_text()
        assert page.locator("#highlights mark").all_text_contents() == marked
        assert page.text_content("#highlights") == f"{text}\u200b"  # the mirrored text has the same line breaks


# Start and end of each word in the translation.
WORD_SPANS = """() => {
  const places = []; let at = 0;
  for (const node of document.getElementById("translation").childNodes) {
    if (node.className === "word") places.push([at, at + node.textContent.length]);
    at += node.textContent.length;
  }
  return places;
}"""


def expected_source_words(text: str, translation: str, details: dict[str, Any], start: int, end: int) -> list[str]:
    """The source words aligned with a target span, computed from characters: each token is a character here."""
    source_letters = [index for index, letter in enumerate(text) if not letter.isspace()]
    target_letters = [index for index, letter in enumerate(translation) if not letter.isspace()]
    token_indices = [
        [at for at, token in enumerate(details[side]) if token.strip()] for side in ("source_tokens", "tokens")
    ]
    source_index = dict(zip(token_indices[0], source_letters, strict=True))
    target_index = dict(zip(token_indices[1], target_letters, strict=True))
    aligned = {
        source_index[source_token]
        for source_token, target_token in details["alignment"]
        if source_token in source_index and start <= target_index.get(target_token, -1) < end
    }
    return [word[0] for word in re.finditer(r"\w+", text) if aligned & set(range(*word.span()))]


@needs_chromium
def test_choosing_an_alternative_replaces_its_segment_only(browser: Browser, site: Running) -> None:
    first, second = "The cat sees a bird", "A dog runs."
    with open_page(browser, site) as page:
        before = translate_on_page(page, f"{first}\n\n  {second} ")
        line = before.split("\n")[2].strip()
        number = next(at for at, (start, _) in enumerate(page.evaluate(WORD_SPANS)) if start > before.rindex(line)) + 1
        start = page.evaluate(WORD_SPANS)[number][0]
        fields = {"q": second, "source": "en", "target": "de", "prefix": before[before.rindex(line) : start]}
        offered = site.post("/alternatives", **fields).json()["alternatives"]
        page.locator(".word").nth(number).click()
        page.wait_for_selector("#alternatives:popover-open")
        assert page.locator("[role=option] b").all_inner_texts() == [alternative["next"] for alternative in offered]
        assert page.evaluate("document.activeElement.getAttribute('role')") == "option"
        assert page.get_attribute(f".word >> nth={number}", "aria-expanded") == "true"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.className") == "word"
        assert page.locator("#alternatives:popover-open").count() == 0
        page.keyboard.press("Enter")
        page.wait_for_selector("#alternatives:popover-open")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowUp")  # from the first to the last
        page.keyboard.press("Enter")
        chosen = offered[-1]["text"]
        start = before.rindex(line)
        assert page.text_content("#announcement") == before[:start] + chosen + before[start + len(line) :]
        page.evaluate("document.getElementById('text').setSelectionRange(99, 99)")
        page.click("#look")
        page.frame_locator("#look-frame").locator(f"#target:has-text({json.dumps(chosen)})").wait_for()
        page.click("#look-close")
        page.click("text=restore the model’s translation")
        page.wait_for_function("(text) => document.getElementById('announcement').textContent === text", arg=before)


@needs_chromium
def test_words_end_at_token_boundaries_and_segments_where_the_server_splits(browser: Browser, site: Running) -> None:
    with open_page(browser, site) as page:
        elided = ["parce", "qu'", "il", "n’", "a"]
        assert shown_words(page, "parce qu'il n’a", ["parce", " qu", "'", "il", " n", "’", "a"]) == elided
        assert shown_words(page, "I didn't", ["I", " didn", "'t"]) == ["I", "didn't"]
        assert shown_words(page, "猫が寝る。", ["猫", "が", "寝る", "。"]) == ["猫", "が", "寝る"]
        cut = """async (segments) => {
          const { segmentIndexAt, segmentSpans } = await import("/page/alignment.js");
          const found = segmentSpans({ segments }, "😀 a. b.", "A. 😀B.");
          const at = [0, 5, 6, 9].map((place) => segmentIndexAt(found, "source", place));
          return [found.map(({ source, target }) => ["😀 a. b.".slice(...source), "A. 😀B.".slice(...target)]), at];
        }"""
        segments = [{"source": [2, 4], "target": [0, 2]}, {"source": [5, 7], "target": [3, 6]}]  # in code points
        assert page.evaluate(cut, segments) == [[["a.", "A."], ["b.", "😀B."]], [0, 0, 1, 1]]


@needs_chromium
def test_replacing_a_segment_shifts_only_what_follows_it(browser: Browser, site: Running) -> None:
    changed = """async () => {
      const { replaceSegment } = await import("/page/alignment.js");
      const pairs = [[0, 1], [5, 6], [9, 10]].map((span) => ({ source: span, target: span }));
      const shown = { text: "a\\n   b\\n  c", translation: "A\\n   B\\n  C", pairs, segments: pairs };
      const details = { tokens: ["BB", " bb"], source_tokens: [" b"], alignment: [[0, 0], [0, 1]] };
      const next = replaceSegment(shown, 1, "BB bb", details);
      const ends = ({ source, target }) => [next.text.slice(...source), next.translation.slice(...target)];
      return [next.translation, next.pairs.map(ends), next.segments.map(ends)];
    }"""
    with open_page(browser, site) as page:
        text, pairs, segments = page.evaluate(changed)
        assert text == "A\n   BB bb\n  C"
        assert sorted(pairs) == [["a", "A"], ["b", "BB"], ["b", "bb"], ["c", "C"]]
        assert segments == [["a", "A"], ["b", "BB bb"], ["c", "C"]]


def shown_words(page: Page, text: str, tokens: list[str]) -> list[str]:
    """The words that the page shows for a translation of these tokens."""
    return page.evaluate(
        """async ([text, tokens]) => {
          const { alignedSpans, splitWords } = await import("/page/alignment.js");
          const details = { tokens, source_tokens: tokens, alignment: tokens.map((_, at) => [at, at]) };
          const words = splitWords(text, alignedSpans(details, text, text)).filter(({ isWord }) => isWord);
          return words.map(({ start, end }) => text.slice(start, end));
        }""",
        [text, tokens],
    )


@needs_chromium
def test_look_shows_every_view_of_the_sentence_at_the_cursor(browser: Browser, site: Running) -> None:
    with open_page(browser, site, color_scheme="light", accept_downloads=True) as page:
        page.click("#theme")
        translations = translate_on_page(page, "A dog\nThe cat").split("\n")
        page.evaluate("document.getElementById('text').setSelectionRange(8, 8)")
        page.click("#look")
        frame = page.frame_locator("#look-frame")
        frame.locator("html[data-ready][data-theme=dark]").wait_for(state="attached")
        assert page.get_attribute("#look-frame", "sandbox") == "allow-scripts"  # and nothing else
        assert '<html data-theme="dark"' in (page.get_attribute("#look-frame", "srcdoc") or "")
        assert frame.locator("#source").inner_text() == "The cat"
        assert frame.locator("#target").inner_text().split() == translations[1].split()
        for view in VIEWS:
            frame.locator(f"#tab-{view}").click()
            assert frame.locator(f"#view-{view}").is_visible()
        with page.expect_download() as saved:
            page.click("#look-save")
        fields = {"q": "The cat", "source": "en", "target": "de", "format": "html"}
        assert Path(saved.value.path()).read_bytes() == site.post("/look", **fields).content
        assert saved.value.suggested_filename == "look.html"
        page.click("#look-close")
        assert page.evaluate("document.activeElement.id") == "look"
        assert page.locator("#look-dialog").is_hidden()


@needs_chromium
def test_the_curl_example_returns_the_translation_shown(browser: Browser, site: Running) -> None:
    text = "It's a \"dog\", `ls` $HOME \\ \n and a cat's"
    with open_page(browser, site) as page:
        translation = translate_on_page(page, text)
        page.click("summary")
        command = page.inner_text("#curl-command")
    if shutil.which("curl") is None:
        pytest.skip("no curl here: apt-get install curl")
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(process.stdout)["translatedText"] == translation

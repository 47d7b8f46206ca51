import json
from pathlib import Path

import pytest

from heed import Translator
from heed.interpret.report import html_report
from heed.interpret.saving import trace_document
from tests.serving.folders import make_folder
from tests.serving.running import CLIENT, Running, serving

GOOD = {"q": "A dog runs.\nThe cat.", "source": "en", "target": "de"}


def events(server: Running, **fields: object) -> list[tuple[str, dict[str, str]]]:
    """The events that a browser's EventSource would deliver."""
    received = []
    with CLIENT.stream("POST", f"{server.address}/translate/stream", json=fields) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in answer.read().decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in event.split("\n"))
            received.append((lines.get("event", "message"), json.loads(lines["data"])))
    return received


def test_a_stream_comes_piece_by_piece_and_is_the_greedy_translation(server: Running, translator: Translator) -> None:
    *pieces, (last, final) = events(server, **GOOD)
    greedy = translator.translate([str(GOOD["q"])], beam=1)[0].text
    assert (last, final) == ("done", {"translatedText": greedy})
    assert len(pieces) > 5
    assert {name for name, _ in pieces} == {"message"}
    assert "".join(data["text"] for _, data in pieces) == greedy


def test_a_stream_from_the_target_language_returns_the_text(server: Running) -> None:
    assert events(server, q="Das Haus", source="de", target="de") == [("done", {"translatedText": "Das Haus"})]


def test_an_invalid_stream_request_gets_400_with_the_reason(server: Running) -> None:
    answer = server.post("/translate/stream", **{**GOOD, "target": "zz"})
    assert (answer.status_code, answer.json()) == (400, {"error": "zz is not supported"})


def test_alternatives_continue_the_prefix(server: Running, translator: Translator) -> None:
    fields = {"q": "A dog", "source": "en", "target": "de", "prefix": "ab", "alternatives": 3}
    answer = server.post("/alternatives", **fields).json()["alternatives"]
    expected = translator.alternatives("A dog", "ab", 3)
    assert [alternative["text"] for alternative in answer] == [alternative.text for alternative in expected]
    assert all(alternative["text"].startswith("ab") for alternative in answer)
    assert all(alternative["text"][2:].lstrip().startswith(alternative["next"]) for alternative in answer)
    multi_line = server.post("/alternatives", **{**fields, "q": "two\nlines"})
    assert multi_line.status_code == 400
    assert multi_line.json()["error"].startswith("Invalid request: a prefix needs a text that is not split (one line")
    many = server.post("/alternatives", **{**fields, "alternatives": 6})
    assert many.json() == {"error": "Invalid request: alternatives parameter must be <= 5"}


def test_look_returns_the_trace_and_the_requested_parts(server: Running, translator: Translator) -> None:
    fields = {"q": "A dog", "source": "en", "target": "de"}
    answer = server.post("/look", **fields, parts=["decoder.1.cross.query"]).json()
    trace = translator.look("A dog")
    assert answer["source"]["tokens"] == list(trace.source_tokens)
    assert answer["predicted"]["tokens"] == list(trace.predicted_tokens)
    assert answer["attention"]["cross"][0][0][0] == pytest.approx(trace.cross_attention[0, 0, 0], abs=1e-3)
    assert list(answer["values"]) == ["decoder.1.cross.query"]
    forced = server.post("/look", **fields, translation="ab").json()
    assert forced["target"]["tokens"] == ["⟨s⟩", "a", "b"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"q": "two\nlines"}, "Invalid request: look takes one line that is not blank"),
        ({"parts": ["nothing"]}, "Invalid request: unknown part 'nothing'"),
        ({"q": "dogs " * 13}, "Invalid request: 65 tokens exceed the limit of 64 for a trace"),
        ({"target": "en"}, "Invalid request: source and target are both en. Choose another target: de"),
        (
            {"source": "auto", "q": "This is the house that they want to see.", "target": "EN"},
            "Invalid request: source and target are both en. Choose another target: de",
        ),
    ],
)
def test_invalid_look_requests_say_why(server: Running, changed: dict[str, object], error: str) -> None:
    answer = server.post("/look", **({"q": "A dog", "source": "en", "target": "de"} | changed))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(error)


def test_look_with_equal_languages_says_so_where_no_model_translates_from_that_language(tmp_path: Path) -> None:
    with serving(make_folder(tmp_path / "ende")) as site:
        answer = site.post("/look", q="Ein Hund", source="de", target="de")
    assert answer.status_code == 400
    error = "source and target are both de, and no model translates from de. Choose another source: en"
    assert answer.json()["error"] == f"Invalid request: {error}"


def test_html_keeps_its_markup_and_gains_none(server: Running, translator: Translator) -> None:
    html = '<p class="a dog">A dog <b>runs</b></p><script>a dog</script>&lt;img src=x onerror=alert(1)&gt;'
    answer = server.post("/translate", q=html, source="en", target="de", format="html", alternatives=1).json()
    a_dog, runs, image = (
        translation.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        for translation in translator.translate(["A dog", "runs", "<img src=x onerror=alert(1)>"])
    )
    start, middle, end = '<p class="a dog">', "</p><script>a dog</script>", ""
    assert answer["translatedText"] == f"{start}{a_dog} <b>{runs}</b>{middle}{image}{end}"
    assert "<img" not in answer["translatedText"]
    assert answer["alternatives"][0].startswith(start)


def test_look_as_html_equals_the_report_of_the_command(server: Running, translator: Translator) -> None:
    answer = server.post("/look", q="A dog", source="en", target="de", format="html")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    trace = translator.look("A dog")
    assert answer.content == html_report(trace, trace_document(trace))
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert "sha256" not in answer.headers["content-security-policy"]  # opened on its own, the page runs no script
    pdf = server.post("/look", q="A dog", source="en", target="de", format="pdf")
    assert pdf.json() == {"error": "pdf format is not supported"}


def test_alternatives_have_details_only_if_requested(server: Running, translator: Translator) -> None:
    fields = {"q": "A dog", "source": "en", "target": "de", "alternatives": 2}
    plain, detailed = (
        server.post("/alternatives", **fields, details=with_details).json()["alternatives"]
        for with_details in (False, True)
    )
    # `truncated`, as this model's max_length is reached.
    assert [sorted(alternative) for alternative in plain] == [["next", "score", "text", "truncated"]] * 2
    for alternative, expected in zip(detailed, translator.alternatives("A dog", "", 2), strict=True):
        assert alternative["details"]["tokens"] == list(expected.tokens)
        assert alternative["details"]["alignment"] == [list(link) for link in expected.alignment]

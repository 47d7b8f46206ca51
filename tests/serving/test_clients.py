"""Clients written for LibreTranslate work with heed's server."""

import json
import subprocess
from pathlib import Path

from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from heed import Translator
from heed.version import __version__
from tests.serving.running import CLIENT, Running


def test_libretranslatepy_translates_detects_and_lists(server: Running, translator: Translator) -> None:
    client = LibreTranslateAPI(server.address)
    assert client.translate("A dog runs.", "en", "de") == translator("A dog runs.")
    detected = client.detect("Das ist ein Haus")
    assert (detected[0]["language"], detected[0]["confidence"] > 90) == ("de", True)
    assert client.languages() == [  # sends a GET request with a form as its body
        {"code": "en", "name": "English", "targets": ["de", "en"]},
        {"code": "de", "name": "German", "targets": ["de", "en"]},
    ]


def test_deep_translator_translates_from_the_query_string(server: Running, translator: Translator) -> None:
    client = LibreTranslator("en", "de", api_key="not needed", custom_url=f"{server.address}/")
    assert client.translate("A dog runs.") == translator("A dog runs.")


def test_a_list_comes_back_as_a_list_of_equal_length_as_weblate_expects(
    server: Running, translator: Translator
) -> None:
    for texts in (["A dog runs."], ["A dog runs.", "", " ", "The cat\n\nsees 5."]):
        answer = server.post("/translate", q=texts, source="en", target="de", format="text").json()
        assert answer == {"translatedText": translator(texts)}


def test_fields_in_the_body_override_those_in_the_query_string(server: Running, translator: Translator) -> None:
    address = f"{server.address}/translate?q=The+cat&source=en&target=de"
    assert CLIENT.post(address).json() == {"translatedText": translator("The cat")}
    for body in ({"json": {"q": "A dog"}}, {"data": {"q": "A dog"}}):
        assert CLIENT.post(address, **body).json()["translatedText"] == translator("A dog")  # type: ignore[arg-type]


def test_separators_in_a_text_never_split_it_into_several_texts(server: Running, translator: Translator) -> None:
    for q in ("a|b", ["a", "b"], "a\nb", ["a|b"], ["a\nb"]):
        answer = server.post("/translate", q=q, source="en", target="de").json()
        assert answer == {"translatedText": translator(q)}


def test_post_to_languages_equals_get_as_argos_expects(server: Running) -> None:
    assert CLIENT.post(f"{server.address}/languages").json() == server.get("/languages").json()


def test_curl_may_send_either_kind_of_form_or_json(server: Running, translator: Translator) -> None:
    expected = {"translatedText": translator("A dog runs.")}
    forms = [
        ["-d", "q=A dog runs.&source=en&target=de"],
        ["-F", "q=A dog runs.", "-F", "source=en", "-F", "target=de"],
        ["-H", "Content-Type: application/json", "-d", '{"q": "A dog runs.", "source": "en", "target": "de"}'],
    ]
    for form in forms:
        process = subprocess.run(["curl", "-s", f"{server.address}/translate", *form], capture_output=True, check=True)
        assert json.loads(process.stdout) == expected


def test_auto_returns_the_detected_language_and_leaves_target_language_texts_unchanged(
    server: Running, translator: Translator
) -> None:
    answer = server.post("/translate", q="The old dog", source="auto", target="de").json()
    assert answer["translatedText"] == translator("The old dog")
    assert answer["detectedLanguage"]["language"] == "en"
    same = server.post("/translate", q=["Das Haus", "the house"], source="auto", target="de").json()
    assert same["translatedText"] == ["Das Haus", translator("the house")]
    assert [detected["language"] for detected in same["detectedLanguage"]] == ["de", "en"]


def test_alternatives_are_the_next_best_translations(server: Running, translator: Translator) -> None:
    answer = server.post("/translate", q=["A dog", "x5"], source="en", target="de", alternatives="2").json()
    expected = translator.translate(["A dog", "x5"], beam=3, nbest=3, align=False)
    assert answer["translatedText"] == [translation.text for translation in expected]
    assert answer["alternatives"] == [[other.text for other in translation.alternatives] for translation in expected]
    single = server.post("/translate", q="A dog", source="en", target="de", alternatives=2).json()
    assert single["alternatives"] == answer["alternatives"][0]


def test_details_hold_tokens_and_their_alignment(server: Running, translator: Translator) -> None:
    text = "A dog.\nThe cat."
    details = server.post("/translate", q=text, source="en", target="de", details=True).json()["details"]
    (expected,) = translator.translate([text])
    assert details["tokens"] == list(expected.tokens)
    assert details["source_tokens"] == list(expected.source_tokens)
    assert [tuple(link) for link in details["alignment"]] == list(expected.alignment)


def test_frontend_settings_have_the_fields_of_libretranslate(server: Running) -> None:
    assert server.get("/frontend/settings").json() == {
        "charLimit": 5000,
        "frontendTimeout": 500,
        "deadline": 30.0,
        "apiKeys": False,
        "keyRequired": False,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}},
    }


def test_models_health_spec_docs_and_metrics_respond(server: Running, folders: tuple[Path, Path]) -> None:
    assert [(model["name"], model["source"], model["target"]) for model in server.get("/models").json()] == [
        (folders[0].name, "en", "de"),
        (folders[1].name, "de", "en"),
    ]
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/health/ready").json()["status"] == "ready"
    spec = server.get("/spec").json()
    assert spec["info"]["version"] == __version__
    page = server.get("/docs").text
    assert all(path in page for path in spec["paths"])
    assert "://" not in page  # loads nothing from other servers
    assert server.get("/docs.css").headers["content-type"] == "text/css; charset=utf-8"
    metrics = server.get("/metrics").text
    assert 'heed_requests_total{route="/health",status="200"}' in metrics

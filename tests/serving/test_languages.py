"""Language codes in any spelling, and texts without letters."""

import pytest

from heed.serving.languages import is_code, language_name, nearest_code
from tests.serving.running import Running


@pytest.mark.parametrize(
    ("requested", "available", "nearest"),
    [
        ("de", ["en", "de"], "de"),
        ("DE", ["en", "de"], "de"),
        ("pt-BR", ["en", "pt"], "pt"),
        ("pt_br", ["pt", "pt-BR"], "pt-BR"),
        ("pt-PT", ["pt-BR", "pt"], "pt"),
        ("pt", ["pt-BR"], "pt-BR"),
        ("zh-Hans", ["zh"], "zh"),
        ("zh-Hans-CN", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"),
        ("zh-Hans", ["zh-Hant"], None),  # another script is another language
        ("sr-Latn", ["sr-Cyrl", "en"], None),
        ("d", ["de"], None),
        ("deu", ["de"], None),
        ("", ["de"], None),
        ("-", ["de"], None),
    ],
)
def test_a_language_code_selects_the_nearest_available_one(
    requested: str, available: list[str], nearest: str | None
) -> None:
    assert nearest_code(requested, available) == nearest


def test_language_codes_have_names_and_invalid_ones_are_recognised() -> None:
    assert [language_name(code) for code in ("de", "PT-br", "zz")] == ["German", "Portuguese (br)", "zz"]
    assert [is_code(text) for text in ("en", "pt-BR", "zh_Hans", "", "e n", "auto", "en-", "ä")] == [True] * 3 + [
        False
    ] * 5


def test_codes_in_capitals_with_regions_and_auto_are_understood(server: Running) -> None:
    plain = server.post("/translate", q="A dog", source="en", target="de").json()
    assert server.post("/translate", q="A dog", source="EN-GB", target="De-AT").json() == plain
    response = server.post("/translate", q="A dog runs.", source="AUTO", target="de_DE").json()
    assert response["detectedLanguage"]["language"] == "en"
    assert server.post("/translate", q="A dog", source="de-CH", target="DE").json() == {"translatedText": "A dog"}
    for route in ("/translate/stream", "/alternatives", "/look"):
        assert server.post(route, q="A dog", source="en-US", target="DE").status_code == 200, route


@pytest.mark.parametrize("text", ["😀😀", "---", "3.14 + 1,000", "  ", "\n12\n", "→ ∞"])
def test_a_text_without_letters_comes_back_as_it_was(server: Running, text: str) -> None:
    for q in (text, [text, "A dog"]):
        translation = server.post("/translate", q=q, source="en", target="de", alternatives=2).json()["translatedText"]
        assert (translation if isinstance(q, str) else translation[0]) == text
    cells = f"<td>{text}</td><td>&#8212; &copy;</td>"
    assert server.post("/translate", q=cells, source="en", target="de", format="html").json()["translatedText"] == cells
    assert text.strip() in server.post("/translate/stream", q=f"{text}.", source="en", target="de").text or "\n" in text


def test_alternatives_are_all_different(server: Running) -> None:
    for text in ("A dog runs.", "Cat", "x y", "<b>a</b> b"):
        for form in ("text", "html"):
            response = server.post("/translate", q=text, source="en", target="de", alternatives=5, format=form).json()
            texts = [response["translatedText"], *response["alternatives"]]
            assert len(set(texts)) == len(texts)
        offers = server.post("/alternatives", q=text, source="en", target="de", prefix="").json()["alternatives"]
        assert len({offer["text"] for offer in offers}) == len(offers)

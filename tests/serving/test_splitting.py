"""Long texts are split into sentences and joined without loss; truncation is reported."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from heed import Translator, load
from tests.serving.folders import make_folder
from tests.serving.running import Running, serving

PARAGRAPH = "A dog runs. The cat sees a bird!  Is this the house?\n\nTwo men sit. \tThey see him.\n"
MODES = ["sentences", "line", None]


@pytest.mark.parametrize("split", MODES)
def test_a_paragraph_is_translated_as_without_a_server(
    server: Running, translator: Translator, split: str | None
) -> None:
    fields = {} if split is None else {"split": split}
    response = server.post("/translate", q=PARAGRAPH, source="en", target="de", details=True, **fields).json()
    (expected,) = translator.translate([PARAGRAPH], split=split)  # type: ignore[arg-type]
    assert response["translatedText"] == expected.text
    segments = [(tuple(segment["source"]), tuple(segment["target"])) for segment in response["details"]["segments"]]
    assert segments == [(segment.source, segment.target) for segment in expected.segments]
    assert len(segments) == (2 if split == "line" else 5)
    assert [PARAGRAPH[start:end].strip()[-1] for (start, end), _ in segments][-1] == "."
    assert response.get("truncated", False) == expected.truncated


def test_text_is_split_into_sentences_by_default_and_white_space_stays(server: Running) -> None:
    translation = server.post("/translate", q=PARAGRAPH, source="en", target="de").json()["translatedText"]
    sentences = [
        server.post("/translate", q=sentence, source="en", target="de").json()["translatedText"]
        for sentence in ("A dog runs.", "The cat sees a bird!", "Is this the house?", "Two men sit.", "They see him.")
    ]
    assert translation == "{} {}  {}\n\n{} \t{}\n".format(*sentences)
    document = f"<p>{PARAGRAPH}</p>"
    translated = server.post("/translate", q=document, source="en", target="de", format="html").json()
    assert translated["translatedText"].count("\n\n") == 1


def test_a_text_that_must_not_be_split_and_is_too_long_is_refused(server: Running) -> None:
    for route in ("/translate", "/translate/stream"):
        answer = server.post(route, q="A dog runs. " * 30, source="en", target="de", split="none")
        message = answer.text
        assert "is longer than this model's limit of 60" in message, route
    answer = server.post("/translate", q="A dog", source="en", target="de", split="words")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid request: split parameter: input should be 'sentences', 'line' or")


def test_pieces_without_letters_stay_as_they_are(server: Running) -> None:
    sentence = server.post("/translate", q="A dog runs.", source="en", target="de").json()["translatedText"]
    response = server.post("/translate", q="😀\nA dog runs.\n---\n3.14\n", source="en", target="de").json()
    assert response["translatedText"] == f"😀\n{sentence}\n---\n3.14\n"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that never predicts EOS."""
    with serving(make_folder(tmp_path_factory.mktemp("endless") / "ende", ends=False)) as running:
        yield running


def test_truncated_is_set_exactly_for_outputs_that_reach_the_length_limit(
    endless: Running, folders: tuple[Path, Path]
) -> None:
    fields = {"source": "en", "target": "de"}
    assert endless.post("/translate", q="A dog", **fields).json()["truncated"] is True
    assert endless.post("/translate", q=["A dog", "5"], **fields).json()["truncated"] == [True, False]
    assert endless.post("/translate", q="<b>5</b> <i>A dog</i>", format="html", **fields).json()["truncated"] is True
    assert "truncated" not in endless.post("/translate", q="5", **fields).json()
    events = endless.post("/translate/stream", q="A dog", **fields).text.strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("event: done\ndata: "))["truncated"] is True
    for alternative in endless.post("/alternatives", q="A dog", prefix="", **fields).json()["alternatives"]:
        assert alternative["truncated"] is True
    assert load(folders[0]).search.max_length == 12

"""What was changed in a text before its translation is reported."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.folders import make_folder
from tests.serving.running import Running, serving

CORRECTION = {"word": "brid", "replacement": "bird"}


@pytest.fixture(scope="module")
def correcting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(make_folder(tmp_path_factory.mktemp("model") / "ende", correct_spelling=True)) as running:
        yield running


def translate(server: Running, q: Any, **fields: Any) -> dict[str, Any]:
    response: dict[str, Any] = server.post("/translate", q=q, source="en", target="de", **fields).json()
    return response


def test_corrected_words_are_part_of_the_response(correcting: Running) -> None:
    correct, misspelt = translate(correcting, "The bird."), translate(correcting, "The brid.")
    assert misspelt == {**correct, "corrections": [CORRECTION]}
    several = translate(correcting, ["The brid.", "The bird."])
    assert several["corrections"] == [[CORRECTION], []]
    assert translate(correcting, "<p>The <b>brid</b>.</p>", format="html")["corrections"] == [CORRECTION]

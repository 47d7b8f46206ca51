"""The notebook display of a trace and its matrices: embedded pictures, no scripts, no requests."""

import re
from base64 import b64decode
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import heed
from heed.interpret.matrix import Matrix
from heed.interpret.trace import Trace
from tests.interpret.translators import small_translator

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_translator().look("a dog runs", "EIN HUND LÄUFT")


def _pictures(html: str) -> list[str]:
    """The embedded pictures, each well-formed; nothing in the HTML may load or run anything."""
    assert not re.search(r"<(?!/?(p|b|img|table|tr|th|td)\b)|\bon\w+=", html)
    encoded = re.findall(r'<img alt="" src="data:image/svg\+xml;base64,([^"]+)">', html)
    assert html.count("<img") == len(encoded)
    pictures = [b64decode(data).decode() for data in encoded]
    for picture in pictures:
        ElementTree.fromstring(picture)  # noqa: S314 - our own
    return pictures


def test_a_trace_shows_its_texts_and_the_picture_that_save_writes(trace: Trace, tmp_path: object) -> None:
    html = trace._repr_html_()
    assert "a dog runs → EIN HUND LÄUFT" in html
    trace.save(f"{tmp_path}/look.svg")
    with open(f"{tmp_path}/look.svg") as file:
        assert _pictures(html) == [file.read()]


def test_every_part_of_a_trace_shows_itself(trace: Trace) -> None:
    for name, matrix in trace.parts().items():
        html = matrix._repr_html_()
        assert name in html
        shape = " × ".join(map(str, matrix.values.shape))
        assert len(_pictures(html)) == 1 or f"of {shape} numbers" in html


def test_the_numbers_shown_are_the_first_of_the_first_head() -> None:
    values = np.arange(2 * 3 * 20, dtype=np.float32).reshape(2, 3, 20)
    html = Matrix("some", "vectors", ("H", "T", "K"), values, ("a", "b", "c"), None, None)._repr_html_()
    assert "the first 3 × 8 of 2 × 3 × 20 numbers" in html
    assert re.findall(r"<td>(\d+)</td>", html) == [str(row * 20 + column) for row in range(3) for column in range(8)]


def test_text_in_notebook_html_is_escaped(trace: Trace) -> None:
    values = np.array([[np.nan]], dtype=np.float32)
    matrix = Matrix(HOSTILE, HOSTILE, ("T", "S"), values, (HOSTILE,), (HOSTILE,), None)
    for displayed in (matrix, replace(matrix, values=np.ones_like(values))):
        html = displayed._repr_html_()
        _pictures(html)
        assert "<script" not in html
        assert "&lt;script&gt;" in html
    source = replace(trace.source, text=HOSTILE)
    assert "<script" not in replace(trace, source=source)._repr_html_()


def test_a_trace_too_long_for_a_picture_refers_to_save(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.interpret.saving.LARGEST_PICTURE", 2)
    assert not _pictures(trace._repr_html_())
    assert "see trace.save('look.html')" in trace._repr_html_()


def test_dir_of_heed_lists_its_public_names() -> None:
    assert dir(heed) == sorted(heed.__all__)
    for name in dir(heed):
        assert getattr(heed, name) is not None

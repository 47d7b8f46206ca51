import json
import re
from pathlib import Path

import numpy as np
import pytest

from heed import SearchConfig, Trace
from heed.errors import DataError, InputError
from heed.interpret.trace import look
from tests.interpret.translators import small_model, small_translator


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_translator().look("a dog runs", "EIN HUND LÄUFT")


def test_a_trace_is_saved_as_json(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "look.json"
    trace.save(path)
    document = json.loads(path.read_text())
    assert (document["format"], document["version"]) == ("heed.trace", 1)
    assert document["source"]["tokens"] == list(trace.source_tokens)
    assert document["target"]["spans"] == [list(span) for span in trace.target.spans]
    np.testing.assert_allclose(document["attention"]["cross"], trace.cross_attention, rtol=5.1e-4)
    np.testing.assert_allclose(document["predicted"]["log_probs"], trace.predicted_log_probs, rtol=5.1e-4)
    np.testing.assert_allclose(document["removal"], trace.removal().values, rtol=5.1e-4)
    assert [len(row) for row in document["top"]] == [10] * 4
    assert document["top"][0][0]["token"] == trace.top(1)[0][0].token
    assert np.array(document["lens"]["log_probs"]).shape == (3, 4)
    assert document["beam"]["nodes"][0]["parent"] is None
    assert [part["name"] for part in document["parts"]] == trace.names()
    assert document["full_bytes"] == trace.size()
    digits = [
        len(number.lstrip("0.").replace(".", "")) for number in re.findall(r"(?<=[\[,:])\d\.\d+", path.read_text())
    ]
    assert max(digits) == 4
    assert "values" not in document["parts"][0]
    trace.save(str(path), full=True)
    parts = trace.parts()
    for part in json.loads(path.read_text())["parts"]:
        assert list(np.array(part["values"]).shape) == part["shape"]
        np.testing.assert_allclose(part["values"], parts[part["name"]].values, rtol=5.1e-4)


def test_a_trace_is_saved_as_a_page_and_as_a_picture(tmp_path: Path, trace: Trace) -> None:
    for ending in ("html", "svg", "png"):
        trace.save(tmp_path / f"look.{ending}")
    assert (tmp_path / "look.html").read_text().startswith("<!doctype html>")
    svg = (tmp_path / "look.svg").read_text()
    rows = [f"{read}→{predicted}" for read, predicted in (("⟨s⟩", "EIN"), ("EIN", "HUND"), ("LÄUFT", "⟨/s⟩"))]
    assert all(row in svg for row in ["Cross-attention, layer 2, mean of the heads", *rows])
    strongest = trace.cross_attention[1].mean(0)[0, 3]  # the second of three layers
    assert f"⟨s⟩→EIN → o: {strongest:.3g}" in svg
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_encoder_only_and_decoder_only_traces_are_saved(tmp_path: Path, kind: str) -> None:
    trace = look(small_model(kind=kind), "EIN HUND")
    trace.save(tmp_path / "look.json")
    document = json.loads((tmp_path / "look.json").read_text())
    assert (document["removal"], document["beam"], document["attention"]["cross"]) == (None, None, [])
    assert (document["lens"] is None) == (kind == "encoder")
    trace.save(tmp_path / "look.svg")
    assert "layer 2, head 1" in (tmp_path / "look.svg").read_text()


def test_a_trace_with_sampling_is_saved_without_a_beam(tmp_path: Path) -> None:
    translator = small_translator()
    translator.search = SearchConfig(sample=True, max_length=5)
    trace = translator.look("a dog")
    assert trace.predicted_ids == (*translator.translate(["a dog"])[0].ids, 2)
    trace.save(tmp_path / "look.json")
    assert json.loads((tmp_path / "look.json").read_text())["beam"] is None


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, trace: Trace) -> None:
    with pytest.raises(InputError, match=r"look.txt: a trace cannot be saved as '.txt': expected .json, .html"):
        trace.save(tmp_path / "look.txt")
    with pytest.raises(DataError, match=r"nowhere/look.json: No such file"):
        trace.save(tmp_path / "nowhere" / "look.json")

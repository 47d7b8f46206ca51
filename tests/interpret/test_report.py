import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed import ModelConfig, SearchConfig, Trace, Transformer, Translator
from heed.interpret.report import assemble, deflated_json, embedded_layers, html_report, json_for_script, quantized
from heed.interpret.saving import trace_document
from heed.interpret.trace import look
from heed.text.tokenizer import Tokenizer
from tests.interpret.report_data import embedded, inflated
from tests.interpret.translators import small_model, small_translator


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_translator().look("a dog runs", "EIN HUND LÄUFT")


@pytest.fixture(scope="module")
def page(trace: Trace) -> str:
    return html_report(trace, trace_document(trace)).decode()


def unpacked(data: dict[str, Any]) -> dict[str, np.ndarray]:
    """Unpack quantised arrays as data.js does."""
    content, shapes = inflated(data["data"]), data["shapes"]
    rows = {name: int(np.prod(shape[:-1])) for name, shape in shapes.items()}
    scales = np.frombuffer(content, "<f4", sum(rows.values()))
    low, high = np.frombuffer(content, np.uint8, offset=4 * len(scales)).reshape(2, -1)
    numbers = low.astype(np.int16) | (high.astype(np.int16) << 8)
    arrays, row, offset = {}, 0, 0
    for name, shape in shapes.items():
        block = numbers[offset : offset + int(np.prod(shape))].reshape(-1, shape[-1])
        arrays[name] = (block * scales[row : row + rows[name], None]).reshape(shape)
        row, offset = row + rows[name], offset + block.size
    return arrays


def test_the_page_embeds_the_document(trace: Trace, page: str) -> None:
    expected = json.loads(json.dumps(trace_document(trace)))
    attention = expected.pop("attention")
    data = embedded(page)
    document = json.loads(inflated(data["document"]))
    assert {key: document[key] for key in expected} == expected
    maps = unpacked(data["attention"])
    for kind, weights in attention.items():
        assert np.abs(maps[kind].ravel() - np.ravel(weights)).max() <= 0.0006


@pytest.mark.parametrize(
    "settings", [{}, {"positions": "rotary"}, {"positions": "learned", "norm": "sandwich"}], ids=str
)
def test_embedded_activations_equal_the_models_to_three_digits(settings: dict[str, str]) -> None:
    trace = small_translator(**settings).look("a dog", "EIN HUND")
    data = embedded(html_report(trace, trace_document(trace)).decode())
    activations = unpacked(data["activations"])
    names = [name for name in activations if name in trace.names() and not name.endswith(".hidden")]
    assert {"encoder.embedding", "decoder.3.cross.value", "decoder.output"} <= set(names)
    for name, part in trace.parts(names).items():
        # All heads of a token in one row.
        values = part.values.transpose(1, 0, 2) if part.values.ndim == 3 else part.values
        rows = values.reshape(len(values), -1)
        assert (np.abs(activations[name] - rows).max(-1) <= np.abs(rows).max(-1) / 1000).all()
    hidden = json.loads(inflated(data["document"]))["hidden"]["encoder.2.feed_forward.hidden"]
    full_hidden = trace.part("encoder.2.feed_forward.hidden").values
    assert hidden["active"] == (full_hidden > 0).sum(-1).tolist()
    top_units = np.take_along_axis(full_hidden, np.array(hidden["units"]), -1)
    assert np.abs(activations["encoder.2.feed_forward.hidden"] - top_units).max() <= np.abs(full_hidden).max() / 1000


def test_a_page_of_39_tokens_is_smaller_than_500_kb() -> None:
    """39 tokens on both sides, small preset; untrained, as its attention compresses worst."""
    words = [f"{first}a{second}o" for first in "bdfgklm" for second in "npqrstv"]
    tokenizer = Tokenizer.train([" ".join(words)] * 3, "words", 400)
    torch.manual_seed(0)
    model = Transformer(ModelConfig.preset("small", vocab_size=tokenizer.vocab_size)).eval()
    translator = Translator([model], (tokenizer, tokenizer), SearchConfig(max_length=38), max_tokens=200)
    trace = translator.look(" ".join(words[:30]) + "!" * 8, " ".join(words[10:40]) + "?" * 8)
    assert len(trace.source_ids) == len(trace.target_ids) == 39
    assert len(html_report(trace, trace_document(trace))) < 500_000
    assert embedded_layers(trace) == 1
    assert embedded_layers(trace, full=True) == 3


def test_the_policy_names_the_hashes_of_the_one_script_and_the_one_style(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1]


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}  # an XML namespace, not a link
    assert not re.search(r"@import|url\(|\bsrc=|\bhref=|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", page)


class _Tags(HTMLParser):
    """Every tag and comment of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(f"{tag} {attrs[:1]}" if tag != "meta" else tag)

    def handle_comment(self, data: str) -> None:
        self.found.append(data)


def tags(page: str) -> list[str]:
    parser = _Tags()
    parser.feed(page)
    return parser.found


@given(
    text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("<>&'\"!-/\u2028\u2029\u202e")))
    | st.sampled_from(["</script>", "<!--", "<!--<script>", "]]>"])
)
def test_no_text_can_become_markup(text: str) -> None:
    script_json = json_for_script({"text": text})
    assert not set(script_json) & set("<>&\u2028\u2029")
    assert json.loads(script_json) == {"text": text}
    page = assemble({"document": deflated_json([text]), "text": text})
    assert tags(page) == tags(assemble({}))
    assert json.loads(inflated(embedded(page)["document"])) == [text]


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[1.0, -3.0], [1e-9, 0.0]], [[[-511.0, 511.0, 1.0]]]], ids=str)
def test_quantized_arrays_round_trip(values: list[Any]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_allclose(
        unpacked(quantized({"a": array}, 511))["a"], array, atol=float(np.abs(array).max()) / 1000
    )
    assert unpacked(quantized({}, 511)) == {}


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_encoder_only_and_decoder_only_models_have_a_page(kind: str) -> None:
    trace = look(small_model(kind=kind), "EIN HUND" if kind == "decoder" else "a dog")
    data = embedded(html_report(trace, trace_document(trace)).decode())
    assert list(data["attention"]["shapes"]) == [kind]
    assert all(name.startswith(kind) for name in data["activations"]["shapes"])

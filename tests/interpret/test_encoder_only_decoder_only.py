"""Traces of encoder-only and decoder-only models: a classifier, a masked LM, a language model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from heed import InputError
from heed.interpret.report import html_report
from heed.interpret.saving import trace_document
from heed.interpret.tokens import TextModel
from heed.interpret.trace import look
from tests.interpret.report_data import embedded, inflated
from tests.interpret.translators import small_model

NAMES = ("cat", "dog", "<b>")


@pytest.fixture(scope="module")
def classifier() -> TextModel:
    return small_model(NAMES, kind="encoder", labels=3)


def test_the_output_of_a_classifier_has_one_row_and_a_column_per_label(classifier: TextModel) -> None:
    trace = look(classifier, "a dog runs")
    with torch.no_grad():
        probabilities = classifier.model(torch.tensor([trace.source_ids]))[0].softmax(-1).numpy()
    assert [candidate.token for candidate in trace.top()[0]] == [NAMES[n] for n in np.argsort(-probabilities)]
    assert [candidate.probability for candidate in trace.top()[0]] == pytest.approx(sorted(probabilities, reverse=True))
    logits, mean = trace.part("logits"), trace.part("mean")
    assert (logits.rows, logits.columns, logits.values.shape) == (("the text",), NAMES, (1, 3))
    np.testing.assert_allclose(mean.values[0], trace.part("encoder.output").values.mean(0), atol=1e-6)
    assert trace.size() == sum(part.values.nbytes for part in trace.parts().values())


def test_without_names_labels_are_numbers() -> None:
    assert look(small_model(kind="encoder", labels=3), "a dog").labels == ("1", "2", "3")
    assert look(small_model(kind="encoder"), "a dog").labels == ()


def test_a_text_pair_is_one_input_with_eos_after_each_text(classifier: TextModel) -> None:
    trace = look(classifier, "a dog\tthe cat")
    assert trace.source.text == "a dog\tthe cat"
    assert trace.source_tokens == (*"a dog", "⟨/s⟩", *"the cat", "⟨/s⟩")
    assert "".join(trace.source.text[slice(*span)] for span in trace.source.spans) == "a dogthe cat"
    assert trace.source.spans[6] == (6, 7)
    for invalid in ("a dog\t", "\ta dog"):
        with pytest.raises(InputError, match="look takes one line that is not blank"):
            look(classifier, invalid)


def test_occlusion_of_a_classifier_is_of_the_most_probable_label(classifier: TextModel) -> None:
    trace = look(classifier, "a dog")
    ids, best = list(trace.source_ids), int(trace.logits.argmax())
    removal = trace.removal()
    assert (removal.rows, removal.columns) == (("the text",), trace.source_tokens)
    for index in range(len(ids)):
        with torch.no_grad():
            without = classifier.model(torch.tensor([ids[:index] + ids[index + 1 :]]))[0].log_softmax(-1)
        lost = float(without[best]) - float(trace.log_probs[0, best])
        assert removal.values[0, index] == pytest.approx(lost, abs=1e-5)


def test_masked_predictions_do_not_depend_on_the_masked_token(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = small_model(kind="encoder")
    trace = look(masked, "a dog")
    holes = trace.holes(3)
    assert len(holes.top) == len(holes.log_probs) == 5  # EOS is never masked
    for index, best_candidates in enumerate(holes.top):
        ids = list(trace.source_ids)
        ids[index] = 1
        with torch.no_grad():
            logits = masked.model(torch.tensor([ids]))[0, index]
        logits[:3] = -torch.inf
        best = logits.log_softmax(-1)
        assert [candidate.id for candidate in best_candidates] == best.topk(3).indices.tolist()
        assert holes.log_probs[index] == pytest.approx(float(best[trace.source_ids[index]]), abs=1e-5)
    monkeypatch.setattr("heed.interpret.lens._TOKENS_PER_CHUNK", 7)
    np.testing.assert_allclose(trace.holes().log_probs, holes.log_probs, atol=1e-5)


def test_masked_predictions_need_a_masked_lm(classifier: TextModel) -> None:
    with pytest.raises(InputError, match="found kind = 'encoder', labels = 3"):
        look(classifier, "a dog").holes()
    with pytest.raises(InputError, match="found kind = 'decoder', labels = None"):
        look(small_model(kind="decoder"), "EIN").holes()


def test_a_saved_trace_has_the_labels_or_the_masked_predictions_of_its_model(
    classifier: TextModel, tmp_path: Path
) -> None:
    document = trace_document(look(classifier, "a dog"))
    assert (document["labels"], document["holes"], document["lens"], document["beam"]) == (
        list(NAMES),
        None,
        None,
        None,
    )
    assert [len(row) for row in document["top"]] == [3]
    assert np.array(document["removal"]).shape == (1, 6)
    masked = trace_document(look(small_model(kind="encoder"), "a dog"))
    assert (masked["labels"], masked["removal"], len(masked["holes"]["top"])) == ([], None, 5)
    assert trace_document(look(small_model(kind="decoder"), "EIN"))["holes"] is None
    for ending in ("html", "json", "svg"):
        look(classifier, "a dog").save(tmp_path / f"look.{ending}", full=ending == "json")
    full_document = json.loads((tmp_path / "look.json").read_text())
    assert [part["shape"] for part in full_document["parts"][-3:]] == [[1, 16], [1, 3], [1, 3]]


def test_the_page_of_a_classifier_embeds_its_labels(classifier: TextModel) -> None:
    trace = look(classifier, "a dog")
    data = embedded(html_report(trace, trace_document(trace)).decode())
    assert list(data["attention"]["shapes"]) == ["encoder"]
    assert json.loads(inflated(data["document"]))["labels"] == list(NAMES)

import json
import re
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import heed
from heed import SearchConfig, Trace, Translator
from heed.backends.protocol import Hypothesis
from heed.decoding.engine import Engine
from heed.decoding.forced_decoding import token_log_probs
from heed.errors import InputError
from heed.interpret.matrix import Matrix
from heed.interpret.trace import look
from tests.interpret.translators import SOURCE, TARGET, small_model, small_translator
from tests.reference.backends import UnusedBackend

TEXT, TRANSLATION = "a dog runs", "EIN HUND LÄUFT"


@pytest.fixture(scope="module")
def translator() -> Translator:
    return small_translator()


@pytest.fixture(scope="module")
def trace(translator: Translator) -> Trace:
    return translator.look(TEXT, TRANSLATION)


def test_rows_are_what_the_decoder_reads_and_each_says_what_it_predicts(trace: Trace) -> None:
    assert trace.source_tokens == (*TEXT, "⟨/s⟩")
    assert trace.target_tokens == ("⟨s⟩", " EIN", " HUND", " LÄUFT")
    assert trace.predicted_tokens == (" EIN", " HUND", " LÄUFT", "⟨/s⟩")
    assert trace.source_ids == (*SOURCE.encode([TEXT])[0], 2)
    assert trace.target_ids == (1, *TARGET.encode([TRANSLATION])[0])
    assert trace.predicted_ids == (*trace.target_ids[1:], 2)
    assert [TRANSLATION[start:end] for start, end in trace.target.spans] == ["", "EIN", " HUND", " LÄUFT"]
    assert trace.encoder_attention.shape == (2, 2, 11, 11)
    assert trace.decoder_attention.shape == (3, 2, 4, 4)
    assert trace.cross_attention.shape == (3, 2, 4, 11)
    for weights in (trace.encoder_attention, trace.decoder_attention, trace.cross_attention):
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_every_matrix_carries_the_tokens_of_its_own_rows_and_columns(trace: Trace) -> None:
    parts = trace.parts()
    assert list(parts) == trace.names()
    assert sum(matrix.values.nbytes for matrix in parts.values()) == trace.size()
    for name, matrix in parts.items():
        of_source = name.startswith("encoder") or re.search(r"\.cross\.(key|value)$", name)
        assert matrix.rows == (trace.source_tokens if of_source else trace.target_tokens), name
        assert matrix.predicts == (None if of_source else trace.predicted_tokens), name
        if re.search(r"\.(scores|scaled|mask|weights)$", name):
            to_source = name.startswith("encoder") or ".cross." in name
            assert matrix.columns == (trace.source_tokens if to_source else trace.target_tokens), name
        elif name in ("logits", "probabilities"):
            assert matrix.columns is not None
            assert [matrix.columns[token] for token in trace.predicted_ids] == list(trace.predicted_tokens)
        else:
            assert matrix.columns is None, name
        assert len(matrix.axes) == matrix.values.ndim
    with pytest.raises(ValueError, match=r"x: 1 labels do not fit axis -2 of the shape \(2, 2\)"):
        Matrix("x", "", ("T", "T"), np.zeros((2, 2), np.float32), ("a",), None, None)


def test_names_count_layers_from_1_and_arrays_from_0(trace: Trace) -> None:
    assert np.array_equal(trace.part("encoder.1.self.weights").values, trace.encoder_attention[0])
    assert np.array_equal(trace.part("decoder.3.self.weights").values, trace.decoder_attention[2])
    assert np.array_equal(trace.part("decoder.2.cross.weights").values, trace.cross_attention[1])
    assert np.array_equal(trace.part("logits").values, trace.logits)
    with pytest.raises(InputError, match=r"this model has no part 'decoder.4.cross.weights': did you mean"):
        trace.part("decoder.4.cross.weights")


def test_the_log_probabilities_are_those_of_scoring(translator: Translator, trace: Trace) -> None:
    (expected,) = translator.token_scores([TEXT], [TRANSLATION])
    assert trace.predicted_log_probs.tolist() == pytest.approx(expected, abs=1e-5)
    for row, candidates in zip(trace.log_probs, trace.top(3), strict=True):
        best = np.argsort(-row, kind="stable")[:3]
        assert [candidate.id for candidate in candidates] == best.tolist()
        assert [candidate.probability for candidate in candidates] == pytest.approx(np.exp(row[best]).tolist())
        assert candidates[0].token == trace.part("logits").columns[best[0]]  # type: ignore[index]


@pytest.mark.parametrize("search", [SearchConfig(max_length=9), SearchConfig(max_length=9, beam=1)])
def test_without_a_target_the_trace_has_the_translators_translation(search: SearchConfig) -> None:
    translator = small_translator()
    translator.search = search
    (translation,) = translator.translate([TEXT])
    trace = translator.look(TEXT)
    assert trace.predicted_ids == (*translation.ids, 2)
    assert trace.target.text == translation.text
    assert trace.predicted_log_probs.sum() == pytest.approx(translation.log_prob, abs=1e-4)
    (best,) = trace.beam().results()
    assert best.ids == translation.ids
    assert best.score == pytest.approx(translation.score)
    assert trace.beam().nodes[0].token == "⟨s⟩"  # noqa: S105 - a token, not a password


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich"])
def test_the_logit_lens_equals_a_model_of_fewer_layers(norm: str) -> None:
    translator = small_translator(norm=norm)
    trace = translator.look(TEXT, TRANSLATION)
    lens = trace.lens(4)
    assert lens.top[-1] == trace.top(4)
    assert np.array_equal(lens.log_probs[-1], trace.predicted_log_probs)
    for layers in (1, 2):
        shorter = deepcopy(translator)
        assert shorter.model.decoder is not None
        shorter.model.decoder.layers = nn.ModuleList(list(shorter.model.decoder.layers)[:layers])
        source, target = list(trace.source_ids[:-1]), list(trace.target_ids[1:])
        (expected,) = token_log_probs([shorter.model], [source], [target])
        assert lens.log_probs[layers - 1].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_occlusion_equals_the_change_without_the_token(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_translator(positions=positions).look(TEXT, TRANSLATION)
    removal = trace.removal()
    assert (removal.rows, removal.columns) == (trace.target_tokens, trace.source_tokens)
    model, tgt_in = trace.text_model.model, torch.tensor([trace.target_ids])
    for index in range(len(trace.source_ids)):
        rest = [token for number, token in enumerate(trace.source_ids) if number != index]
        with torch.no_grad():
            without = model(torch.tensor([rest]), tgt_in)[0].log_softmax(-1)
        lost = without[range(4), list(trace.predicted_ids)].numpy() - trace.predicted_log_probs
        np.testing.assert_allclose(removal.values[:, index], lost, atol=1e-5)
    monkeypatch.setattr("heed.interpret.lens._TOKENS_PER_CHUNK", 9)
    np.testing.assert_allclose(trace.removal().values, removal.values, atol=1e-5)


def test_encoder_only_and_decoder_only_traces_have_one_side() -> None:
    encoder = look(small_model(kind="encoder"), TEXT)
    assert (encoder.source_tokens, encoder.target_tokens, encoder.predicted_tokens) == ((*TEXT, "⟨/s⟩"), (), ())
    assert encoder.encoder_attention.shape == (2, 2, 11, 11)
    assert (len(encoder.decoder_attention), len(encoder.cross_attention)) == (0, 0)
    assert len(encoder.top(2)) == len(encoder.part("logits").rows) == 11
    assert encoder.predicted_log_probs.shape == (0,)
    decoder = look(small_model(kind="decoder"), TRANSLATION)
    assert decoder.source_tokens == ()
    assert decoder.target_tokens == ("⟨s⟩", " EIN", " HUND", " LÄUFT")
    assert decoder.decoder_attention.shape == (3, 2, 4, 4)
    assert decoder.lens(2).log_probs.shape == (3, 4)
    assert decoder.part("logits").predicts == decoder.predicted_tokens
    with pytest.raises(InputError, match="the logit lens needs decoder layers"):
        encoder.lens()
    with pytest.raises(InputError, match="removal needs an encoder-decoder, found kind = 'decoder'"):
        decoder.removal()
    with pytest.raises(InputError, match="beam needs an encoder-decoder, found kind = 'encoder'"):
        encoder.beam()
    with pytest.raises(InputError, match="kind = 'decoder' takes one text, found a target too: 'HUND'"):
        look(decoder.text_model, "EIN", "HUND")


def test_texts_and_models_that_cannot_be_traced_are_refused(translator: Translator) -> None:
    for text in ("", " ", "a dog\nruns", "a dog\n", "a dog " * 9):
        with pytest.raises(
            InputError, match=f"at most 40 tokens; found {len(text)} tokens: {re.escape(repr(text[:50]))}"
        ):
            translator.look(text)
    ensemble = Translator([translator.model] * 2, translator.tokenizers)
    with pytest.raises(InputError, match="look shows one model at a time, found an ensemble of 2"):
        ensemble.look(TEXT)
    with pytest.raises(InputError, match="needs a target: found neither `target` nor `translate`"):
        look(small_model(), TEXT)


def test_a_trace_without_target_has_the_translation_of_the_engine(translator: Translator) -> None:
    class Fixed(Engine):
        """An engine that returns the same translation for every source."""

        def search(self, sources: Any, *_: Any) -> list[list[Hypothesis]]:
            return [[Hypothesis(tuple(TARGET.encode([TRANSLATION])[0]), -1.0, -1.0)] for _ in sources]

    with_fixed_engine = Translator(
        [translator.model], translator.tokenizers, translator.search, engine=Fixed(UnusedBackend())
    )
    assert with_fixed_engine.look(TEXT).target.text == TRANSLATION
    assert translator.look(TEXT).target.text != TRANSLATION


def test_bertviz_arguments_have_the_shapes_it_expects(trace: Trace) -> None:
    arguments = trace.for_bertviz()
    assert [layer.shape for layer in arguments["encoder_attention"]] == [(1, 2, 11, 11)] * 2
    assert [layer.shape for layer in arguments["decoder_attention"]] == [(1, 2, 4, 4)] * 3
    assert [layer.shape for layer in arguments["cross_attention"]] == [(1, 2, 4, 11)] * 3
    assert (arguments["encoder_tokens"], arguments["decoder_tokens"]) == (
        list(trace.source_tokens),
        list(trace.target_tokens),
    )
    for kind, tokens in (("encoder", (*TEXT, "⟨/s⟩")), ("decoder", ("⟨s⟩", " EIN"))):
        one_sided = look(small_model(kind=kind), TEXT if kind == "encoder" else "EIN").for_bertviz()
        assert sorted(one_sided) == ["attention", "tokens"]
        assert one_sided["tokens"] == list(tokens)
        assert all(layer.shape == (1, 2, len(tokens), len(tokens)) for layer in one_sided["attention"])


@pytest.mark.parametrize("view", ["head_view", "model_view"])
@pytest.mark.filterwarnings("ignore")  # it leaves files open
def test_bertviz_draws_a_trace(trace: Trace, view: str) -> None:
    draw = getattr(pytest.importorskip("bertviz"), view)
    html = draw(**trace.for_bertviz(), html_action="return").data
    assert json.dumps(list(trace.target_tokens)) in html
    assert draw(**look(small_model(kind="decoder"), "EIN").for_bertviz(), html_action="return").data


def test_trace_is_a_public_name() -> None:
    assert heed.Trace is Trace

from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
import torch
from tokenizers import Tokenizer as Backend

from heed import ModelConfig, SearchConfig, Transformer, load
from heed.backends.ctranslate2 import CTranslate2Backend
from heed.backends.protocol import BackendChoice, Hypothesis
from heed.decoding.engine import Engine
from heed.decoding.forced_decoding import token_log_probs
from heed.errors import ConfigError, InputError
from heed.interop.ctranslate2_export import ctranslate2_files
from heed.interop.folders import export_for
from tests.interop.engine_models import (
    CONFIGS,
    SOURCES,
    TEXTS,
    every_model,
    folder,
    model_of,
    model_without_pad_and_bos,
    tokenizers_of,
)
from tests.model.examples import SHAPE
from tests.reference.backends import stepwise_engine

SENTENCE_IDS = range(len(SOURCES))


def backend_of(model: Transformer, dtype: str = "float32") -> CTranslate2Backend:
    tokenizers, choice = tokenizers_of(model.config), BackendChoice("ctranslate2", dtype, "cpu", "a test")
    return CTranslate2Backend.open(ctranslate2_files(model, tokenizers, dtype), model.config, tokenizers, choice)


def engine_of(model: Transformer, dtype: str = "float32") -> Engine:
    return Engine(backend_of(model, dtype))


def heed_search(
    model: Transformer,
    config: SearchConfig,
    prefixes: list[list[int]] | None = None,
    sources: list[list[int]] = SOURCES,
) -> list[list[Hypothesis]]:
    engine = stepwise_engine(model)
    return engine.search(sources, config, range(len(sources)), prefixes)


def forced_score(model: Transformer, source: list[int], hypothesis: Hypothesis) -> float:
    (scores,) = token_log_probs([model], [source], [hypothesis.ids])
    return sum(scores)


def forced_score_without_pad_and_bos(model: Transformer, source: list[int], hypothesis: Hypothesis) -> float:
    """The log-probability if padding and BOS have probability zero."""
    with torch.no_grad():
        logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *hypothesis.ids]]))[0]
    logits[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    return float(logits.log_softmax(-1).gather(1, torch.tensor([[*hypothesis.ids, 2]]).T).sum())


@every_model
def test_scores_and_greedy_search_in_ctranslate2_equal_heeds_for_every_model(config: ModelConfig) -> None:
    model = model_of(config)
    backend = backend_of(model)
    engine = Engine(backend)
    targets = [[4, 5, 6, 7, 8, 9, 10], [3], [12, 11], [9, 9, 9]]
    sources = [[backend.source_tokens[token] for token in ids] for ids in SOURCES]
    scores = backend.translator.score_batch(
        sources, [[backend.target_tokens[token] for token in ids] for ids in targets]
    )
    for score, expected in zip(scores, token_log_probs([model], SOURCES, targets), strict=True):
        assert score.log_probs == pytest.approx(expected, abs=1e-4)
    search = SearchConfig(beam=1, max_length=8)
    results = engine.search(SOURCES, search, SENTENCE_IDS)
    assert [hypothesis.ids for [hypothesis] in results] == [
        hypothesis.ids for [hypothesis] in heed_search(model, search)
    ]
    for source, [hypothesis] in zip(SOURCES, results, strict=True):
        if len(hypothesis.ids) < 8:
            assert hypothesis.log_prob == pytest.approx(
                forced_score_without_pad_and_bos(model, source, hypothesis), abs=1e-3
            )


@pytest.mark.parametrize(("stop", "alpha"), [("exact", 0.0), ("exact", 2.0), ("first", 0.6)])
def test_beam_search_in_ctranslate2_is_ranked_by_heeds_length_penalty(stop: str, alpha: float) -> None:
    model = model_without_pad_and_bos()
    search = SearchConfig.model_validate({"nbest": 3, "max_length": 12, "length_penalty": alpha, "stop": stop})
    results = engine_of(model).search(SOURCES, search, SENTENCE_IDS)
    assert [len(hypotheses) for hypotheses in results] == [3] * len(SOURCES)
    for source, hypotheses, best in zip(SOURCES, results, heed_search(model, search), strict=True):
        assert hypotheses == sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
        assert hypotheses[0].ids == best[0].ids
        for hypothesis in hypotheses:
            assert replace(hypothesis, truncated=False) == Hypothesis.of(hypothesis.ids, hypothesis.log_prob, alpha)
            assert len(hypothesis.ids) == 12 or not hypothesis.truncated
            assert hypothesis.log_prob == pytest.approx(forced_score(model, source, hypothesis), abs=1e-3)


def test_beam_search_in_ctranslate2_gives_nearly_always_heeds_best_hypothesis() -> None:
    model = model_without_pad_and_bos()
    engine = engine_of(model)
    sources = [torch.randint(3, 13, (length % 8 + 1,)).tolist() for length in range(60)]
    for stop, min_equal in (("first", 60), ("exact", 58)):  # an untrained model has near ties; a trained one has not
        search = SearchConfig.model_validate({"stop": stop, "length_penalty": 1.5, "max_length": 12})
        pairs = zip(engine.search(sources, search, range(60)), heed_search(model, search, sources=sources), strict=True)
        assert sum(hypotheses[0].ids == best[0].ids for hypotheses, best in pairs) >= min_equal


def test_a_truncated_hypothesis_is_scored_with_eos() -> None:
    model = model_of(ModelConfig.model_validate({**SHAPE, "tie_embeddings": False}))
    with torch.no_grad():
        model.get_parameter("vocabulary.output.bias")[model.config.eos_id] -= 100.0  # EOS is never chosen
    for beam in (1, 4):
        search = SearchConfig(beam=beam, max_length=5)
        for source, [hypothesis] in zip(SOURCES, engine_of(model).search(SOURCES, search, SENTENCE_IDS), strict=True):
            assert len(hypothesis.ids) == 5
            assert hypothesis.log_prob == pytest.approx(forced_score(model, source, hypothesis), rel=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_prefix_is_kept_and_part_of_the_score(beam: int) -> None:
    model, search = model_without_pad_and_bos(), SearchConfig(beam=beam, max_length=8)
    prefixes = [[4, 5], [7], [3, 3, 3], [12]]
    results = engine_of(model).search(SOURCES, search, SENTENCE_IDS, prefixes)
    for source, prefix, [hypothesis], [best] in zip(
        SOURCES, prefixes, results, heed_search(model, search, prefixes), strict=True
    ):
        assert list(hypothesis.ids[: len(prefix)]) == prefix
        assert len(hypothesis.ids) <= 8
        assert hypothesis.log_prob == pytest.approx(forced_score(model, source, hypothesis), abs=1e-4)
        assert hypothesis.score <= best.score + 1e-4
        if beam == 1:
            assert hypothesis.ids == best.ids


def test_min_length_max_length_and_no_repeat_ngram_are_respected() -> None:
    model = model_without_pad_and_bos()
    with torch.no_grad():
        model.get_parameter("vocabulary.bias")[model.config.eos_id] += 10.0  # EOS is the most probable token
    engine = engine_of(model)
    assert min(len(hypothesis.ids) for [hypothesis] in engine.search(SOURCES, SearchConfig(beam=1), SENTENCE_IDS)) < 6
    search = SearchConfig(beam=1, min_length=6, max_length=8, no_repeat_ngram=1)
    results = engine.search(SOURCES, search, SENTENCE_IDS)
    assert [hypothesis.ids for [hypothesis] in results] == [
        hypothesis.ids for [hypothesis] in heed_search(model, search)
    ]
    for [hypothesis] in results:
        assert 6 <= len(hypothesis.ids) <= 8
        assert len(set(hypothesis.ids)) == len(hypothesis.ids)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_exporting_does_not_change_the_model(dtype: str) -> None:
    model = model_of(CONFIGS[0])
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ctranslate2_files(model, tokenizers_of(model.config), dtype)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("separate", [False, True])
def test_ctranslate2_without_heed_translates_with_an_exported_folder(separate: bool, tmp_path: Path) -> None:
    path = folder(tmp_path / "model", separate=separate)
    export_for("ctranslate2", path, tmp_path / "out")
    source = Backend.from_file(str(tmp_path / "out" / ("source_tokenizer.json" if separate else "tokenizer.json")))
    target = Backend.from_file(str(tmp_path / "out" / "tokenizer.json"))
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    tokens = [encoding.tokens for encoding in source.encode_batch([" " + text for text in TEXTS])]
    results = translator.translate_batch(tokens, beam_size=1, max_decoding_length=9)
    ids = target.get_vocab()
    translations = [target.decode([ids[name] for name in result.hypotheses[0]]) for result in results]
    assert translations == [
        target.decode(list(translation.ids)) for translation in load(path).translate(TEXTS, beam=1, align=False)
    ]


def test_an_int8_export_is_smaller_and_scores_close_to_float32(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", positions="learned", d_model=32)
    export_for("ctranslate2", path, tmp_path / "whole")
    export_for("ctranslate2-int8", path, tmp_path / "small")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < 0.4 * sizes[0]
    int8, float32 = (load(tmp_path / name) for name in ("small", "whole"))
    assert isinstance(int8.backend, CTranslate2Backend)
    assert int8.backend.translator.compute_type.startswith("int8")
    int8_scores = [translation.log_prob for translation in int8.translate(TEXTS, beam=1, align=False)]
    float32_scores = [translation.log_prob for translation in float32.translate(TEXTS, beam=1, align=False)]
    assert int8_scores != float32_scores
    assert int8_scores == pytest.approx(float32_scores, rel=0.5)


def test_models_and_searches_that_ctranslate2_does_not_support_are_refused() -> None:
    decoder_only = Transformer(ModelConfig.model_validate({**SHAPE, "kind": "decoder"}))
    with pytest.raises(ConfigError, match="kind = 'decoder' cannot be exported to ctranslate2"):
        ctranslate2_files(decoder_only, tokenizers_of(decoder_only.config))
    engine = engine_of(model_of(CONFIGS[0]))
    with pytest.raises(InputError, match=r"search.sample = true needs the engine heed or onnx"):
        engine.search(SOURCES, SearchConfig(sample=True), SENTENCE_IDS)
    with pytest.raises(InputError, match="a sequence of 3001 tokens is longer than the 2048 positions"):
        engine.search(SOURCES, SearchConfig(max_length=3000), SENTENCE_IDS)
    with pytest.raises(InputError, match="a sequence of 2101 tokens is longer than the 2048 positions"):
        engine.search([[5] * 2100], SearchConfig(max_length=3), [0])

from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
import torch
from tokenizers import Tokenizer as Backend

from heed import ModelConfig, SearchConfig, Transformer, load
from heed.backends.base import BackendChoice, Hypothesis
from heed.backends.ctranslate2 import CTranslate2Backend
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
    sensible_model,
    tokenizers_of,
)
from tests.model.examples import SHAPE
from tests.reference.backends import stepwise_engine

NUMBERS = range(len(SOURCES))


def backend_of(model: Transformer, dtype: str = "float32") -> CTranslate2Backend:
    tokenizers, choice = tokenizers_of(model.config), BackendChoice("ctranslate2", dtype, "cpu", "a test")
    return CTranslate2Backend.open(ctranslate2_files(model, tokenizers, dtype), model.config, tokenizers, choice)


def engine_of(model: Transformer, dtype: str = "float32") -> Engine:
    return Engine(backend_of(model, dtype))


def ours(
    model: Transformer,
    config: SearchConfig,
    prefixes: list[list[int]] | None = None,
    sources: list[list[int]] = SOURCES,
) -> list[list[Hypothesis]]:
    engine = stepwise_engine(model)
    return engine.search(sources, config, range(len(sources)), prefixes)


def forced(model: Transformer, source: list[int], one: Hypothesis) -> float:
    (scores,) = token_log_probs([model], [source], [one.ids])
    return sum(scores)


def forced_among_words(model: Transformer, source: list[int], one: Hypothesis) -> float:
    """Where padding and beginning are no words, and have no share of the probability."""
    with torch.no_grad():
        logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *one.ids]]))[0]
    logits[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    return float(logits.log_softmax(-1).gather(1, torch.tensor([[*one.ids, 2]]).T).sum())


@every_model
def test_every_model_is_the_same_in_ctranslate2(config: ModelConfig) -> None:
    model = model_of(config)
    backend = backend_of(model)
    engine = Engine(backend)
    targets = [[4, 5, 6, 7, 8, 9, 10], [3], [12, 11], [9, 9, 9]]
    sources = [[backend.source_tokens[number] for number in ids] for ids in SOURCES]
    scored = backend.translator.score_batch(
        sources, [[backend.target_tokens[number] for number in ids] for ids in targets]
    )
    for theirs, own in zip(scored, token_log_probs([model], SOURCES, targets), strict=True):
        assert theirs.log_probs == pytest.approx(own, abs=1e-4)
    search = SearchConfig(beam=1, max_length=8)
    found = engine.search(SOURCES, search, NUMBERS)
    assert [one.ids for [one] in found] == [one.ids for [one] in ours(model, search)]
    for source, [one] in zip(SOURCES, found, strict=True):
        if len(one.ids) < 8:
            assert one.log_prob == pytest.approx(forced_among_words(model, source, one), abs=1e-3)


@pytest.mark.parametrize(("stop", "alpha"), [("exact", 0.0), ("exact", 2.0), ("first", 0.6)])
def test_beam_search_is_ranked_by_our_length_penalty(stop: str, alpha: float) -> None:
    model = sensible_model()
    search = SearchConfig.model_validate({"nbest": 3, "max_length": 12, "length_penalty": alpha, "stop": stop})
    found = engine_of(model).search(SOURCES, search, NUMBERS)
    assert [len(hypotheses) for hypotheses in found] == [3] * len(SOURCES)
    for source, hypotheses, best in zip(SOURCES, found, ours(model, search), strict=True):
        assert hypotheses == sorted(hypotheses, key=lambda one: -one.score)
        assert hypotheses[0].ids == best[0].ids
        for one in hypotheses:
            assert replace(one, truncated=False) == Hypothesis.of(one.ids, one.log_prob, alpha)
            assert len(one.ids) == 12 or not one.truncated
            assert one.log_prob == pytest.approx(forced(model, source, one), abs=1e-3)


def test_a_beam_ends_where_ours_ends_or_nearly() -> None:
    model = sensible_model()
    engine = engine_of(model)
    sources = [torch.randint(3, 13, (length % 8 + 1,)).tolist() for length in range(60)]
    for stop, least in (("first", 60), ("exact", 58)):  # untrained, it has no favourites: a trained one has
        search = SearchConfig.model_validate({"stop": stop, "length_penalty": 1.5, "max_length": 12})
        pairs = zip(engine.search(sources, search, range(60)), ours(model, search, sources=sources), strict=True)
        assert sum(found[0].ids == best[0].ids for found, best in pairs) >= least


def test_what_is_cut_off_is_scored_with_its_end() -> None:
    model = model_of(ModelConfig.model_validate({**SHAPE, "tie_embeddings": False}))
    with torch.no_grad():
        model.get_parameter("vocabulary.output.bias")[model.config.eos_id] -= 100.0  # it never wants to end
    for beam in (1, 4):
        search = SearchConfig(beam=beam, max_length=5)
        for source, [one] in zip(SOURCES, engine_of(model).search(SOURCES, search, NUMBERS), strict=True):
            assert len(one.ids) == 5
            assert one.log_prob == pytest.approx(forced(model, source, one), rel=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_prefix_is_kept_and_counted(beam: int) -> None:
    model, search = sensible_model(), SearchConfig(beam=beam, max_length=8)
    prefixes = [[4, 5], [7], [3, 3, 3], [12]]
    found = engine_of(model).search(SOURCES, search, NUMBERS, prefixes)
    for source, prefix, [one], [best] in zip(SOURCES, prefixes, found, ours(model, search, prefixes), strict=True):
        assert list(one.ids[: len(prefix)]) == prefix
        assert len(one.ids) <= 8
        assert one.log_prob == pytest.approx(forced(model, source, one), abs=1e-4)
        assert one.score <= best.score + 1e-4
        if beam == 1:
            assert one.ids == best.ids


def test_lengths_and_repeats_are_limited_as_asked() -> None:
    model = sensible_model()
    with torch.no_grad():
        model.get_parameter("vocabulary.bias")[model.config.eos_id] += 10.0  # it would rather end at once
    engine = engine_of(model)
    assert min(len(one.ids) for [one] in engine.search(SOURCES, SearchConfig(beam=1), NUMBERS)) < 6
    search = SearchConfig(beam=1, min_length=6, max_length=8, no_repeat_ngram=1)
    found = engine.search(SOURCES, search, NUMBERS)
    assert [one.ids for [one] in found] == [one.ids for [one] in ours(model, search)]
    for [one] in found:
        assert 6 <= len(one.ids) <= 8
        assert len(set(one.ids)) == len(one.ids)


@pytest.mark.parametrize("arithmetic", ["float32", "int8"])
def test_exporting_leaves_the_model_as_it_was(arithmetic: str) -> None:
    model = model_of(CONFIGS[0])
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ctranslate2_files(model, tokenizers_of(model.config), arithmetic)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("separate", [False, True])
def test_ctranslate2_alone_translates_with_an_exported_folder(separate: bool, tmp_path: Path) -> None:
    path = folder(tmp_path / "model", separate=separate)
    export_for("ctranslate2", path, tmp_path / "out")
    source = Backend.from_file(str(tmp_path / "out" / ("source_tokenizer.json" if separate else "tokenizer.json")))
    target = Backend.from_file(str(tmp_path / "out" / "tokenizer.json"))
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    tokens = [encoding.tokens for encoding in source.encode_batch([" " + text for text in TEXTS])]
    found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=9)
    ids = target.get_vocab()
    written = [target.decode([ids[name] for name in one.hypotheses[0]]) for one in found]
    assert written == [target.decode(list(one.ids)) for one in load(path).translate(TEXTS, beam=1, align=False)]


def test_int8_is_near_and_small(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", positions="learned", d_model=32)
    export_for("ctranslate2", path, tmp_path / "whole")
    export_for("ctranslate2-int8", path, tmp_path / "small")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < 0.4 * sizes[0]
    small, whole = (load(tmp_path / name) for name in ("small", "whole"))
    assert isinstance(small.backend, CTranslate2Backend)
    assert small.backend.translator.compute_type.startswith("int8")
    near = [one.log_prob for one in small.translate(TEXTS, beam=1, align=False)]
    exact = [one.log_prob for one in whole.translate(TEXTS, beam=1, align=False)]
    assert near != exact
    assert near == pytest.approx(exact, rel=0.5)


def test_what_ctranslate2_cannot_do_is_refused() -> None:
    alone = Transformer(ModelConfig.model_validate({**SHAPE, "kind": "decoder"}))
    with pytest.raises(ConfigError, match="kind = 'decoder' cannot be exported to ctranslate2"):
        ctranslate2_files(alone, tokenizers_of(alone.config))
    engine = engine_of(model_of(CONFIGS[0]))
    with pytest.raises(InputError, match=r"search.sample = true needs the engine heed or onnx"):
        engine.search(SOURCES, SearchConfig(sample=True), NUMBERS)
    with pytest.raises(InputError, match="a sequence of 3001 tokens is longer than the 2048 positions"):
        engine.search(SOURCES, SearchConfig(max_length=3000), NUMBERS)
    with pytest.raises(InputError, match="a sequence of 2101 tokens is longer than the 2048 positions"):
        engine.search([[5] * 2100], SearchConfig(max_length=3), [0])

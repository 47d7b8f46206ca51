from pathlib import Path

import pytest

import heed
from heed.errors import ConfigError
from heed.inference.open import load_text_model, look_into
from heed.search_config import SearchConfig
from tests.serving.folders import LABELS, TOKENIZER, make_folder, make_lm_or_classifier


def test_look_into_is_a_public_name() -> None:
    assert heed.look_into is look_into


def test_look_into_traces_a_folder_of_any_kind(tmp_path: Path) -> None:
    classes = look_into(make_lm_or_classifier(tmp_path / "c", "classify"), "A dog")
    assert {candidate.token for candidate in classes.top()[0]} == set(LABELS)
    trace = look_into(make_lm_or_classifier(tmp_path / "lm", "language-model"), "A dog")
    assert trace.predicted_tokens == (*"A dog", "⟨/s⟩")
    assert trace.predicted_ids[:-1] == tuple(TOKENIZER.encode(["A dog"])[0])
    assert len(look_into(make_lm_or_classifier(tmp_path / "m", "masked"), "A dog").holes().top) == 5
    ende = make_folder(tmp_path / "ende")
    forced = look_into(ende, "A dog", "ab", {"beam": 1})
    assert (forced.target_tokens, forced.text_model.search.beam) == (("⟨s⟩", "a", "b"), 1)


def test_search_settings_are_those_of_the_folder_or_given_ones_and_are_checked(tmp_path: Path) -> None:
    ende = make_folder(tmp_path / "ende")
    text_model, translator = load_text_model(ende)
    assert translator is not None
    assert text_model.search == translator.search == heed.load(ende).search
    model, none = load_text_model(make_lm_or_classifier(tmp_path / "lm", "language-model"), {"beam": 2})
    assert (none, model.search.beam) == (None, 2)
    assert isinstance(model.search, SearchConfig)
    for folder in (ende, tmp_path / "lm"):
        with pytest.raises(ConfigError, match="beam"):
            load_text_model(folder, {"beam": 0})


def test_without_a_target_the_trace_has_the_models_translation(tmp_path: Path) -> None:
    ende = make_folder(tmp_path / "ende")
    assert look_into(ende, "A dog").target.text == heed.load(ende)("A dog")

from dataclasses import replace
from typing import Any

import pytest

from heed.text.corpus_defaults import (
    CHOSEN,
    Hardware,
    choose_settings,
    choose_tokenizers,
    choose_vocab_size,
    letters_warning,
)
from heed.text.normalization import TextStyle
from heed.text.text_statistics import TextStatistics, combined, text_statistics

STYLE = TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=1.0)
SENTENCES = TextStatistics(texts=1000, characters=70, alphabet=90, new_words=0.05, style=STYLE)
SHORT_STRINGS = TextStatistics(texts=1000, characters=8, alphabet=26, new_words=1.0, style=STYLE)
PHONEMES = TextStatistics(texts=1000, characters=14, alphabet=25, new_words=0.0, style=STYLE)
STEMS = TextStatistics(texts=1000, characters=14, alphabet=30, new_words=0.3, style=STYLE)  # and their features
CLOSED = TextStatistics(texts=1000, characters=70, alphabet=30, new_words=0.0, style=STYLE)
CHINESE = TextStatistics(texts=1000, characters=30, alphabet=3000, new_words=0.98, style=STYLE)
DOCUMENTS = TextStatistics(texts=1000, characters=400, alphabet=90, new_words=0.6, style=STYLE)


def settings(**training: Any) -> dict[str, dict[str, Any]]:
    tiny = {"tokens_per_batch": 4096, "schedule": "inverse-sqrt", **training}
    return {"data": {}, "model": {"d_model": 128, "dropout": 0.3}, "training": tiny, "translate": {}}


def chosen(
    *sides: TextStatistics,
    user: dict[str, dict[str, Any]] | None = None,
    on_gpu: bool = False,
    processes: int = 1,
    **training: Any,
) -> dict[str, Any]:
    """The settings chosen for a corpus, by name."""
    nothing: dict[str, dict[str, Any]] = {section: {} for section in CHOSEN}
    result = settings(**training)
    for section, values in (user or {}).items():
        result[section] |= values
    choices = list(choose_settings(sides, result, nothing | (user or {}), Hardware(on_gpu, processes)))
    assert all(choice.name in CHOSEN[choice.section] for choice in choices)
    assert all(result[choice.section][choice.name] == choice.value for choice in choices)
    return {choice.name: choice.value for choice in choices}


@pytest.mark.parametrize(
    ("sides", "tokenizers"),
    [
        ((SENTENCES, SENTENCES), {"tokenizer": "bpe"}),
        ((CLOSED, CLOSED), {"tokenizer": "bpe"}),
        ((SHORT_STRINGS, SHORT_STRINGS), {"tokenizer": "characters"}),
        ((SHORT_STRINGS, STEMS), {"tokenizer": "characters"}),
        ((SHORT_STRINGS, PHONEMES), {"tokenizer": "bpe", "source_tokenizer": "characters"}),
        ((PHONEMES, SHORT_STRINGS), {"tokenizer": "characters", "source_tokenizer": "bpe"}),
        ((CHINESE, SENTENCES), {"tokenizer": "bpe"}),
        ((DOCUMENTS, DOCUMENTS), {"tokenizer": "bpe"}),
    ],
)
def test_only_short_strings_of_new_words_are_tokenised_by_character(
    sides: tuple[TextStatistics, TextStatistics], tokenizers: dict[str, str]
) -> None:
    assert {choice.name: choice.value for choice in choose_tokenizers(sides)} == tokenizers


def test_sentences_keep_the_regularisation_of_the_preset() -> None:
    assert chosen(SENTENCES, SENTENCES) == {
        "tokenizer": "bpe",
        "word_pairs": True,
        "positions": "rotary",
        "learning_rate": 5e-3,
        "correct_spelling": True,
    }


@pytest.mark.parametrize("side", [SHORT_STRINGS, CLOSED])
def test_predictable_text_is_regularised_less_and_learned_more_slowly(side: TextStatistics) -> None:
    values = chosen(side, side, on_gpu=True)
    assert (values["dropout"], values["label_smoothing"], values["learning_rate"]) == (0.1, 0.0, 5e-3)


def test_positions_are_rotary_where_the_model_allows_them() -> None:
    assert all(chosen(side, side)["positions"] == "rotary" for side in (SENTENCES, SHORT_STRINGS, CLOSED))
    assert "positions" not in chosen(SENTENCES, SENTENCES, schedule="paper")
    unfit: list[dict[str, Any]] = [{"heads": 128}, {"mixer": "lstm"}, {"d_k": 4}, {"positions": "learned"}]
    assert not any("positions" in chosen(SENTENCES, SENTENCES, user={"model": model}) for model in unfit)


def test_spelling_is_corrected_where_few_source_words_are_new() -> None:
    assert "correct_spelling" in chosen(SENTENCES, SHORT_STRINGS)
    for source in (replace(SENTENCES, new_words=0.11), SHORT_STRINGS, CHINESE):
        assert "correct_spelling" not in chosen(source, SENTENCES)
    assert "correct_spelling" not in chosen(SENTENCES, SENTENCES, user={"data": {"tokenizer": "characters"}})


def test_sentences_of_a_natural_language_are_trained_on_beside_pairs_of_words() -> None:
    assert chosen(replace(SENTENCES, new_words=0.3), SENTENCES)["word_pairs"] is True
    for other in (SHORT_STRINGS, CLOSED, CHINESE):
        assert "word_pairs" not in chosen(other, SENTENCES)
        assert "word_pairs" not in chosen(SENTENCES, other)


def test_on_a_cpu_predictable_text_gets_more_and_smaller_batches() -> None:
    values = chosen(CLOSED, CLOSED, max_steps=10_000)
    assert (values["tokens_per_batch"], values["max_steps"], values["learning_rate"]) == (1024, 40_000, 1.25e-3)
    long_sources = chosen(CLOSED, replace(CLOSED, characters=35), max_steps=10_000)
    assert (long_sources["tokens_per_batch"], long_sources["max_steps"]) == (512, 80_000)
    assert chosen(CLOSED, replace(CLOSED, characters=2))["tokens_per_batch"] == 256
    assert chosen(replace(CLOSED, characters=2), CLOSED)["tokens_per_batch"] == 1024
    own_batches = chosen(CLOSED, CLOSED, user={"training": {"tokens_per_batch": 2048}})
    assert not own_batches.keys() & {"tokens_per_batch", "max_steps"}
    own_steps = chosen(CLOSED, CLOSED, user={"training": {"max_steps": 300}})
    assert "tokens_per_batch" in own_steps
    assert "max_steps" not in own_steps


def test_the_learning_rate_is_inversely_proportional_to_the_width_and_grows_with_the_root_of_the_batch() -> None:
    wide = {"model": {"d_model": 512}}
    assert chosen(SENTENCES, SENTENCES, user=wide)["learning_rate"] == pytest.approx(5e-3 / 4)
    assert chosen(SENTENCES, SENTENCES, tokens_per_batch=16_384)["learning_rate"] == pytest.approx(1e-2)
    assert chosen(SENTENCES, SENTENCES, accumulate=2, processes=2)["learning_rate"] == pytest.approx(1e-2)


@pytest.mark.parametrize(("on_gpu", "batch"), [(False, 4096), (True, 16_384)])
def test_batches_have_fewer_target_tokens_where_sources_are_much_longer(on_gpu: bool, batch: int) -> None:
    headlines = replace(SENTENCES, characters=SENTENCES.characters // 4)
    ratio = SENTENCES.characters / headlines.characters
    values = chosen(SENTENCES, headlines, on_gpu=on_gpu, max_steps=10_000)
    assert values["tokens_per_batch"] == int(batch / ratio) // 8 * 8
    assert values.get("max_steps") == (None if on_gpu else 10_000 * 4096 // values["tokens_per_batch"])
    assert chosen(SENTENCES, replace(SENTENCES, characters=0), on_gpu=on_gpu)["tokens_per_batch"] == 256
    slightly_longer = replace(SENTENCES, characters=SENTENCES.characters * 4 // 3)
    assert chosen(slightly_longer, SENTENCES, on_gpu=on_gpu).get("tokens_per_batch", batch) == batch


def test_batches_are_not_smaller_because_a_script_needs_fewer_characters() -> None:
    english = ["The small dog runs through the large garden.", "A woman is reading a book in the park."] * 100
    chinese = ["小狗在大花园里奔跑。", "一个女人在公园里看书。"] * 100
    sides = [
        replace(SENTENCES, characters=found.characters, cjk=found.cjk)
        for found in (combined([text_statistics(texts)]) for texts in (english, chinese))
    ]
    assert sides[0].characters > 3 * sides[1].characters
    assert "tokens_per_batch" not in chosen(*sides)
    assert chosen(sides[1], replace(SENTENCES, characters=5))["tokens_per_batch"] < 4096


def test_sentences_without_spaces_are_not_spelt() -> None:
    thai = text_statistics(["เขาไปโรงเรียนทุกวัน กับเพื่อน", "ผมชอบกินข้าวผัดกับไข่ดาว", "วันนี้อากาศร้อนมากจริง"] * 50 + ["x"])
    thai = replace(thai, new_words=0.9)
    for sides in ((thai, SHORT_STRINGS), (SENTENCES, thai)):
        assert [(choice.name, choice.value) for choice in choose_tokenizers(sides)] == [("tokenizer", "bpe")]
    words = replace(thai, characters=7)
    assert next(choose_tokenizers((words, PHONEMES))).name == "tokenizer"
    assert {choice.value for choice in choose_tokenizers((words, PHONEMES))} == {"bpe", "characters"}


def test_a_gpu_gets_larger_batches() -> None:
    assert chosen(SENTENCES, SENTENCES, on_gpu=True)["tokens_per_batch"] == 16_384
    assert "tokens_per_batch" not in chosen(SENTENCES, SENTENCES, on_gpu=True, tokens_per_batch=30_000)


def test_the_schedule_of_the_paper_has_its_own_learning_rate_and_batches() -> None:
    assert chosen(SENTENCES, SENTENCES, on_gpu=True, schedule="paper").keys() == {
        "tokenizer",
        "word_pairs",
        "correct_spelling",
    }


def test_settings_of_the_user_are_never_changed() -> None:
    user: dict[str, dict[str, Any]] = {
        "data": {"tokenizer": "words"},
        "model": {"dropout": 0.2, "positions": "learned"},
        "training": {"label_smoothing": 0.3, "tokens_per_batch": 100, "learning_rate": 1e-3},
    }
    assert chosen(SHORT_STRINGS, SHORT_STRINGS, user=user, on_gpu=True) == {}


def test_bpe_dropout_keeps_bpe() -> None:
    assert "tokenizer" not in chosen(SHORT_STRINGS, SHORT_STRINGS, user={"data": {"bpe_dropout": 0.1}})


def test_a_larger_corpus_gets_a_larger_vocabulary() -> None:
    assert str(choose_vocab_size(29_000)) == "data.vocab_size = 8048: at most, for 29,000 pairs or texts"
    assert choose_vocab_size(10).value == 1000
    assert choose_vocab_size(4_000_000).value == choose_vocab_size(10**9).value == 32_000


def test_a_vocabulary_that_splits_words_into_letters_is_reported() -> None:
    assert letters_warning(SENTENCES, 16.0, 8000) is None
    assert letters_warning(CHINESE, 30.0, 8000) is None
    assert letters_warning(SENTENCES, 65.0, 300) == (
        "a vocabulary of 300 tokens splits words into letters: 65 tokens for 70 characters per text. Raise "
        "data.vocab_size, or set data.tokenizer=characters"
    )


def test_a_choice_names_setting_value_and_reason() -> None:
    (choice,) = choose_tokenizers((SHORT_STRINGS, SHORT_STRINGS))
    assert str(choice) == (
        "data.tokenizer = characters: 100% of the words in one half of the text are new, and texts have 8 and 8 "
        "characters on average"
    )


def test_new_words_are_those_of_one_half_that_the_other_half_does_not_have() -> None:
    statistics = text_statistics(["a b", "a c", "d b", "b e"])  # known: a, b, d; of a, c, b, e half is new
    assert (statistics.texts, statistics.characters, statistics.alphabet) == (4, 3.0, 6)
    assert statistics.new_words == 0.5


def test_the_sample_is_bounded_and_evenly_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.text.text_statistics._SAMPLE", 10)
    statistics = text_statistics(f"{number:04}" for number in range(1000))
    assert 10 <= statistics.texts < 20
    assert statistics.alphabet == 10


def test_statistics_of_several_corpora_are_means_by_their_number_of_texts() -> None:
    large, small = TextStatistics(300, 10, 26, 0.1, STYLE), TextStatistics(100, 50, 90, 0.5, TextStyle(1, 0.4, 0, 0))
    both = combined([large, small])
    assert (both.texts, both.characters, both.alphabet) == (400, 20.0, 90)
    assert both.new_words == pytest.approx(0.2)
    assert both.style == TextStyle(0.25, 0.1, 0.0, 0.75)

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.config import DataConfig
from heed.errors import ConfigError
from heed.text.source_noise import SourceNoise, misspell
from heed.text.tokenizer import Tokenizer

TEXTS = [f"the small dog number {number} runs over the green field" for number in range(200)]
TOKENIZER = Tokenizer.train(TEXTS, "bpe", 400)
IDS = TOKENIZER.encode(TEXTS)
KEYS = [f"1 0 {index}" for index in range(len(TEXTS))]


def test_half_of_the_sentences_are_misspelt_and_the_others_unchanged() -> None:
    noisy = SourceNoise(TOKENIZER, 0.2)(IDS, KEYS)
    changed = sum(new != old for new, old in zip(noisy, IDS, strict=True))
    assert 70 <= changed <= 130
    assert SourceNoise(TOKENIZER, 0.0)(IDS, KEYS) == IDS


def test_the_noise_of_a_sentence_depends_only_on_the_sentence_and_its_key() -> None:
    noise = SourceNoise(TOKENIZER, 0.2)
    together = noise(IDS, KEYS)
    assert together == [noise([ids], [key])[0] for ids, key in zip(IDS, KEYS, strict=True)]
    assert together != noise(IDS, [f"{key} in another epoch" for key in KEYS])


def test_the_share_of_misspelt_letters_is_the_rate() -> None:
    text = "abcdefghij" * 1000
    length = len(misspell(text, 0.1, random.Random(1)))
    assert abs(length - len(text)) < 150  # as many letters are doubled as are deleted
    assert misspell(text, 0.0, random.Random(1)) == text


@given(st.text(max_size=40), st.integers(0, 100))
def test_only_letters_change(text: str, seed: int) -> None:
    misspelt = misspell(text, 0.5, random.Random(seed))
    others = [character for character in text if not character.isalpha()]
    assert [character for character in misspelt if not character.isalpha()] == others


def test_a_sentence_never_becomes_empty() -> None:
    letters = TOKENIZER.encode(["a"] * 200)
    assert all(SourceNoise(TOKENIZER, 0.9)(letters, KEYS))


def test_source_noise_is_for_translation_only() -> None:
    with pytest.raises(ConfigError, match=r"source_noise = 0\.1 does not apply to task = 'language-model'"):
        DataConfig(task="language-model", source_noise=0.1)

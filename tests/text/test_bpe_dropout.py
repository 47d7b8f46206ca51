import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product
from math import prod, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from heed.errors import ConfigError, DataError
from heed.text import bpe_dropout
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import BOS, BYTE_TOKENS, SPECIAL, Tokenizer, TokenizerType
from tests.text.bpe_examples import ANY_TEXT, OVERLAPPING, TEXTS, TRAINED, Merge, parse_merges, tokenizer_with_merges

DROPOUTS = {rate: BpeDropout(TRAINED, rate) for rate in (0, 0.1, 0.5, 0.9)}
WHITE_SPACE = "\t\n\v\f\r \x1c\x1f\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u202f\u205f\u3000\ufeff"

Segmentation = tuple[str, ...]
Frequencies = Counter[Segmentation]

NOT_OVERLAPPING = parse_merges("d+e Ġ+a b+c Ġa+bc Ġabc+de de+de Ġ+f")


def sample(tokenizer: Tokenizer, word: str, rate: float, samples: int) -> Frequencies:
    """How often heed's BPE-dropout gives each segmentation of a word."""
    (ids,) = tokenizer.encode([word])
    names = {token: name for name, token in json.loads(tokenizer.to_json())["model"]["vocab"].items()}
    segmented = BpeDropout(tokenizer, rate)([ids] * samples, map(str, range(samples)))
    return Counter(tuple(names[token] for token in ids) for ids in segmented)


def sample_from_tokenizers(tokenizer: Tokenizer, word: str, rate: float, samples: int) -> Frequencies:
    parts = json.loads(tokenizer.to_json())
    parts["model"]["dropout"] = rate
    backend = Backend.from_str(json.dumps(parts))
    return Counter(tuple(encoding.tokens) for encoding in backend.encode_batch([" " + word] * samples))


def exact_distribution(merges: list[Merge], word: str, rate: float) -> dict[Segmentation, float]:
    """The probability of each segmentation by the paper's algorithm 1, summed over all choices of dropped merges."""

    @cache
    def distribution(pieces: Segmentation) -> Counter[Segmentation]:
        pairs = list(pairwise(pieces))
        applicable = [index for index, pair in enumerate(pairs) if pair in merges]
        probabilities: Counter[Segmentation] = Counter()
        for kept in product([True, False], repeat=len(applicable)):
            probability = prod(1 - rate if keep else rate for keep in kept)
            kept_indices = [index for index, keep in zip(applicable, kept, strict=True) if keep]
            if not kept_indices:
                probabilities[pieces] += probability  # type: ignore[assignment]
                continue
            index = min(kept_indices, key=lambda index: (merges.index(pairs[index]), index))
            merged = (*pieces[:index], "".join(pairs[index]), *pieces[index + 2 :])
            for segmentation, probability_after in distribution(merged).items():
                probabilities[segmentation] += probability * probability_after  # type: ignore[assignment]
        return probabilities

    return dict(distribution(("Ġ", *word)))


def matches(counts: Frequencies, expected: dict[Segmentation, float]) -> bool:
    """Whether no frequency is off by more than six standard deviations (or, if it is rare, a few occurrences)."""
    samples = counts.total()
    tolerances = {segmentation: 4 + 6 * sqrt(samples * rate * (1 - rate)) for segmentation, rate in expected.items()}
    close = all(
        abs(counts[segmentation] - samples * rate) <= tolerances[segmentation]
        for segmentation, rate in expected.items()
    )
    return close and counts.keys() <= expected.keys()


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT, rate=st.sampled_from([0.1, 0.5, 0.9]), key=st.text(st.characters(codec="ascii")))
def test_every_segmentation_decodes_to_the_same_text(text: str, rate: float, key: str) -> None:
    segmented = DROPOUTS[rate](TRAINED.encode([text]), [key])
    assert TRAINED.decode(segmented) == [text]
    assert all(token >= len(SPECIAL) for token in segmented[0])


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=5))
def test_a_dropout_of_0_gives_the_tokenizers_ids(texts: list[str]) -> None:
    ids = TRAINED.encode(texts)
    assert DROPOUTS[0](ids, map(str, range(len(texts)))) == ids


SPACES_MERGE_WITH_EVERY_BYTE = tokenizer_with_merges(
    [("Ġ", byte) for byte in BYTE_TOKENS] + [(byte, "Ġ") for byte in BYTE_TOKENS if byte != "Ġ"]
)
WITHOUT_DROPOUT = BpeDropout(SPACES_MERGE_WITH_EVERY_BYTE, 0)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from(WHITE_SPACE + "ab1é'st.«“あ")))
def test_words_are_split_like_the_tokenizers_for_any_white_space(text: str) -> None:
    ids = SPACES_MERGE_WITH_EVERY_BYTE.encode([text])
    assert WITHOUT_DROPOUT(ids, ["key"]) == ids


def test_words_are_split_like_the_tokenizers_for_any_character_after_spaces() -> None:
    beyond_all_white_space = 0x3100
    ids = SPACES_MERGE_WITH_EVERY_BYTE.encode([f"b  {chr(point)}c" for point in range(beyond_all_white_space)])
    assert WITHOUT_DROPOUT(ids, map(str, range(len(ids)))) == ids


def test_a_dropout_close_to_1_leaves_only_bytes() -> None:
    segmented = BpeDropout(TRAINED, 0.999999)(TRAINED.encode(TEXTS), TEXTS)
    assert [len(ids) for ids in segmented] == [len(f" {text}".encode()) for text in TEXTS]


def test_a_segmentation_depends_only_on_the_sentence_and_its_key() -> None:
    ids = TRAINED.encode(TEXTS) * 20
    keys = [f"epoch 3, {number}" for number in range(len(ids))]
    dropout = BpeDropout(TRAINED, 0.3)
    segmented = dropout(ids, keys)
    assert dropout(ids, keys) == segmented
    assert dropout(ids[::-1], keys[::-1]) == segmented[::-1]
    assert [
        BpeDropout(TRAINED, 0.3)([sentence], [key])[0] for sentence, key in zip(ids, keys, strict=True)
    ] == segmented


def test_another_process_gives_the_same_segmentations() -> None:
    ids, keys = TRAINED.encode(TEXTS), list("abcde")
    program = """if True:
        import json, sys
        from heed.text.bpe_dropout import BpeDropout
        from heed.text.tokenizer import Tokenizer
        tokenizer, ids, keys = json.load(sys.stdin)
        print(json.dumps(BpeDropout(Tokenizer.from_json(tokenizer, "bpe"), 0.3)(ids, keys)))
    """
    arguments = json.dumps([TRAINED.to_json(), ids, keys])
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    output = subprocess.run(
        [sys.executable, "-c", program], input=arguments, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(output.stdout) == BpeDropout(TRAINED, 0.3)(ids, keys)


def test_different_keys_give_different_segmentations() -> None:
    (ids,) = TRAINED.encode(TEXTS[:1])
    segmented = BpeDropout(TRAINED, 0.5)([ids] * 100, map(str, range(100)))
    assert len({tuple(sentence) for sentence in segmented}) > 90


@pytest.mark.parametrize("cache_size", [0, 1, 30])
@pytest.mark.parametrize("long_word", [0, 6, 1000])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_word_cache_does_not_change_the_segmentations(
    cache_size: int, long_word: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = TRAINED.encode([*TEXTS, "ababababa" * 9]) * 10
    keys = [str(number) for number in range(len(ids))]
    expected = BpeDropout(TRAINED, rate)(ids, keys)
    monkeypatch.setattr(bpe_dropout, "_LONG", long_word)
    assert BpeDropout(TRAINED, rate, cache_size)(ids, keys) == expected


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("word", ["street", "stress", "banana", "an", "tree"])
def test_segmentations_have_the_probabilities_of_the_papers_algorithm(word: str, rate: float) -> None:
    expected = exact_distribution(OVERLAPPING, word, rate)
    assert sum(expected.values()) == pytest.approx(1)
    assert matches(sample(tokenizer_with_merges(OVERLAPPING), word, rate, samples=8_000), expected)
    assert not matches(sample(tokenizer_with_merges(OVERLAPPING), word, rate + 0.05, samples=8_000), expected)


@pytest.mark.parametrize("sample", [sample, sample_from_tokenizers])
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("word", ["abcde", "dedede", "f"])
def test_heed_and_tokenizers_have_the_papers_probabilities_if_merges_do_not_overlap(
    sample: Callable[[Tokenizer, str, float, int], Frequencies], word: str, rate: float
) -> None:
    assert matches(
        sample(tokenizer_with_merges(NOT_OVERLAPPING), word, rate, 8_000),
        exact_distribution(NOT_OVERLAPPING, word, rate),
    )


def test_tokenizers_drops_less_than_the_paper_if_merges_overlap() -> None:
    """Why the library is no reference: when a merge no longer applies, it tries merges again that it had dropped."""
    expected = exact_distribution(OVERLAPPING, "street", 0.1)["Ġstreet",]
    frequency = sample_from_tokenizers(tokenizer_with_merges(OVERLAPPING), "street", 0.1, 8_000)["Ġstreet",] / 8_000
    assert frequency > expected + 0.1


def test_more_dropout_gives_longer_sequences() -> None:
    ids = TRAINED.encode(TEXTS) * 20
    lengths = [
        sum(len(sentence) for sentence in BpeDropout(TRAINED, rate)(ids, map(str, range(len(ids)))))
        for rate in (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
    ]
    assert lengths == sorted(set(lengths))


def test_empty_input_gives_empty_output() -> None:
    assert BpeDropout(TRAINED, 0.5)([], []) == []
    assert BpeDropout(TRAINED, 0.5)([[], []], ["a", "b"]) == [[], []]


@pytest.mark.parametrize("kind", ["unigram", "words", "characters", "bytes"])
def test_tokenizers_without_merges_are_refused(kind: TokenizerType) -> None:
    with pytest.raises(ConfigError, match=f"BPE-dropout needs a tokenizer of type bpe, found {kind}"):
        BpeDropout(Tokenizer.train(TEXTS, kind, 400), 0.1)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_probabilities_outside_0_to_1_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"at least 0 and less than 1, found {rate}"):
        BpeDropout(TRAINED, rate)


def test_special_tokens_and_incomplete_characters_are_refused() -> None:
    (ids,) = TRAINED.encode(["A dog"])
    with pytest.raises(DataError, match="without special tokens, found '⟨s⟩'"):
        BpeDropout(TRAINED, 0.1)([[BOS, *ids]], ["key"])
    (ids,) = BpeDropout(TRAINED, 0.999999)(TRAINED.encode(["犬"]), ["key"])
    with pytest.raises(DataError, match="needs ids of complete UTF-8 characters without special tokens, found 'ĠçĬ'"):
        BpeDropout(TRAINED, 0.1)([ids[:-1]], ["key"])

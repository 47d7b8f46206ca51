import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
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

TEXTS = [
    "The animal didn't cross the street.",
    "It was too tired.",
    "A dog runs  twice.",
    "naïve café",
    "犬が通りを走る。",
]
TRAINED = Tokenizer.train(TEXTS * 5, "bpe", 500)
DROPOUTS = {chance: BpeDropout(TRAINED, chance) for chance in (0, 0.1, 0.5, 0.9)}
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WHITE_SPACE = "\t\n\v\f\r \x1c\x1f\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u202f\u205f\u3000\ufeff"

Merge = tuple[str, str]
Segmentation = tuple[str, ...]
Frequencies = Counter[Segmentation]


def handmade(merges: Iterable[Merge]) -> Tokenizer:
    """A tokenizer of bytes and these merges, best first."""
    merges = list(merges)
    names = dict.fromkeys((*SPECIAL, *BYTE_TOKENS, *(left + right for left, right in merges)))
    parts = json.loads(TRAINED.to_json())
    parts["model"] |= {"vocab": {name: token for token, name in enumerate(names)}, "merges": merges}
    return Tokenizer.from_json(json.dumps(parts), "bpe")


def merges_of(text: str) -> list[Merge]:
    return [(left, right) for left, right in (line.split("+") for line in text.split())]


# Merges that compete for the same pieces, and some that never do.
OVERLAPPING = merges_of("Ġ+s t+r e+e Ġs+tr Ġstr+ee Ġstree+t s+t r+e st+re Ġ+a n+a a+n an+an na+na Ġ+an b+an")
APART = merges_of("d+e Ġ+a b+c Ġa+bc Ġabc+de de+de Ġ+f")


def draw(tokenizer: Tokenizer, word: str, chance: float, times: int) -> Frequencies:
    """How often each segmentation of a word comes up in ours."""
    (ids,) = tokenizer.encode([word])
    names = {token: name for name, token in json.loads(tokenizer.to_json())["model"]["vocab"].items()}
    drawn = BpeDropout(tokenizer, chance)([ids] * times, map(str, range(times)))
    return Counter(tuple(names[token] for token in ids) for ids in drawn)


def draw_from_the_library(tokenizer: Tokenizer, word: str, chance: float, times: int) -> Frequencies:
    parts = json.loads(tokenizer.to_json())
    parts["model"]["dropout"] = chance
    backend = Backend.from_str(json.dumps(parts))
    return Counter(tuple(encoding.tokens) for encoding in backend.encode_batch([" " + word] * times))


def expect(merges: list[Merge], word: str, chance: float) -> dict[Segmentation, float]:
    """The paper's algorithm 1 to the letter, with every way to drop merges weighed by its probability."""

    @cache
    def ends(pieces: Segmentation) -> Counter[Segmentation]:
        pairs = list(pairwise(pieces))
        applicable = [place for place, pair in enumerate(pairs) if pair in merges]
        found: Counter[Segmentation] = Counter()
        for kept in product([True, False], repeat=len(applicable)):
            probability = prod(1 - chance if keep else chance for keep in kept)
            left = [place for place, keep in zip(applicable, kept, strict=True) if keep]
            if not left:
                found[pieces] += probability  # type: ignore[assignment]
                continue
            place = min(left, key=lambda place: (merges.index(pairs[place]), place))
            after = (*pieces[:place], "".join(pairs[place]), *pieces[place + 2 :])
            for end, further in ends(after).items():
                found[end] += probability * further  # type: ignore[assignment]
        return found

    return dict(ends(("Ġ", *word)))


def agree(found: Frequencies, expected: dict[Segmentation, float]) -> bool:
    """Whether no frequency is off by more than six standard deviations (or, if it is rare, a few occurrences)."""
    times = found.total()
    slack = {end: 4 + 6 * sqrt(times * chance * (1 - chance)) for end, chance in expected.items()}
    near = all(abs(found[end] - times * chance) <= slack[end] for end, chance in expected.items())
    return near and found.keys() <= expected.keys()


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT, chance=st.sampled_from([0.1, 0.5, 0.9]), key=st.text(st.characters(codec="ascii")))
def test_every_segmentation_decodes_to_the_same_text(text: str, chance: float, key: str) -> None:
    cut = DROPOUTS[chance](TRAINED.encode([text]), [key])
    assert TRAINED.decode(cut) == [text]
    assert all(token >= len(SPECIAL) for token in cut[0])


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=5))
def test_without_dropout_it_is_the_tokenizer(texts: list[str]) -> None:
    ids = TRAINED.encode(texts)
    assert DROPOUTS[0](ids, map(str, range(len(texts)))) == ids


SPACES_MERGE_WITH_ALL = handmade(
    [("Ġ", byte) for byte in BYTE_TOKENS] + [(byte, "Ġ") for byte in BYTE_TOKENS if byte != "Ġ"]
)
ONLY_ITS_WORDS = BpeDropout(SPACES_MERGE_WITH_ALL, 0)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from(WHITE_SPACE + "ab1é'st.«“あ")))
def test_words_are_the_tokenizers_whatever_the_white_space(text: str) -> None:
    ids = SPACES_MERGE_WITH_ALL.encode([text])
    assert ONLY_ITS_WORDS(ids, ["key"]) == ids


def test_words_are_the_tokenizers_whatever_follows_spaces() -> None:
    beyond_all_white_space = 0x3100
    ids = SPACES_MERGE_WITH_ALL.encode([f"b  {chr(point)}c" for point in range(beyond_all_white_space)])
    assert ONLY_ITS_WORDS(ids, map(str, range(len(ids)))) == ids


def test_near_certain_dropout_leaves_bytes() -> None:
    cut = BpeDropout(TRAINED, 0.999999)(TRAINED.encode(TEXTS), TEXTS)
    assert [len(ids) for ids in cut] == [len(f" {text}".encode()) for text in TEXTS]


def test_a_segmentation_depends_on_sentence_and_key_alone() -> None:
    ids = TRAINED.encode(TEXTS) * 20
    keys = [f"epoch 3, {number}" for number in range(len(ids))]
    dropout = BpeDropout(TRAINED, 0.3)
    together = dropout(ids, keys)
    assert dropout(ids, keys) == together
    assert dropout(ids[::-1], keys[::-1]) == together[::-1]
    assert [BpeDropout(TRAINED, 0.3)([one], [key])[0] for one, key in zip(ids, keys, strict=True)] == together


def test_another_process_finds_the_same() -> None:
    ids, keys = TRAINED.encode(TEXTS), list("abcde")
    program = """if True:
        import json, sys
        from heed.text.bpe_dropout import BpeDropout
        from heed.text.tokenizer import Tokenizer
        tokenizer, ids, keys = json.load(sys.stdin)
        print(json.dumps(BpeDropout(Tokenizer.from_json(tokenizer, "bpe"), 0.3)(ids, keys)))
    """
    given = json.dumps([TRAINED.to_json(), ids, keys])
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    answer = subprocess.run(
        [sys.executable, "-c", program], input=given, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) == BpeDropout(TRAINED, 0.3)(ids, keys)


def test_other_keys_find_others() -> None:
    (ids,) = TRAINED.encode(TEXTS[:1])
    cut = BpeDropout(TRAINED, 0.5)([ids] * 100, map(str, range(100)))
    assert len({tuple(one) for one in cut}) > 90


@pytest.mark.parametrize("cache_size", [0, 1, 30])
@pytest.mark.parametrize("long", [0, 6, 1000])
@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_what_is_remembered_changes_nothing(
    cache_size: int, long: int, chance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = TRAINED.encode([*TEXTS, "ababababa" * 9]) * 10
    keys = [str(number) for number in range(len(ids))]
    expected = BpeDropout(TRAINED, chance)(ids, keys)
    monkeypatch.setattr(bpe_dropout, "_LONG", long)
    assert BpeDropout(TRAINED, chance, cache_size)(ids, keys) == expected


@pytest.mark.parametrize("chance", [0.1, 0.5])
@pytest.mark.parametrize("word", ["street", "stress", "banana", "an", "tree"])
def test_segmentations_are_as_frequent_as_in_the_paper(word: str, chance: float) -> None:
    expected = expect(OVERLAPPING, word, chance)
    assert sum(expected.values()) == pytest.approx(1)
    assert agree(draw(handmade(OVERLAPPING), word, chance, times=8_000), expected)
    assert not agree(draw(handmade(OVERLAPPING), word, chance + 0.05, times=8_000), expected)


@pytest.mark.parametrize("drawn", [draw, draw_from_the_library])
@pytest.mark.parametrize("chance", [0.1, 0.5])
@pytest.mark.parametrize("word", ["abcde", "dedede", "f"])
def test_the_library_and_ours_agree_where_merges_do_not_overlap(
    drawn: Callable[[Tokenizer, str, float, int], Frequencies], word: str, chance: float
) -> None:
    assert agree(drawn(handmade(APART), word, chance, 8_000), expect(APART, word, chance))


def test_the_library_drops_less_than_the_paper_where_merges_overlap() -> None:
    """The reason not to take it as the measure: merges that no longer apply give dropped ones further chances."""
    whole = expect(OVERLAPPING, "street", 0.1)["Ġstreet",]
    found = draw_from_the_library(handmade(OVERLAPPING), "street", 0.1, 8_000)["Ġstreet",] / 8_000
    assert found > whole + 0.1


def test_the_larger_the_chance_the_longer_the_sentences() -> None:
    ids = TRAINED.encode(TEXTS) * 20
    lengths = [
        sum(len(one) for one in BpeDropout(TRAINED, chance)(ids, map(str, range(len(ids)))))
        for chance in (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
    ]
    assert lengths == sorted(set(lengths))


def test_nothing_stays_nothing() -> None:
    assert BpeDropout(TRAINED, 0.5)([], []) == []
    assert BpeDropout(TRAINED, 0.5)([[], []], ["a", "b"]) == [[], []]


@pytest.mark.parametrize("kind", ["unigram", "words", "characters", "bytes"])
def test_tokenizers_without_merges_are_refused(kind: TokenizerType) -> None:
    with pytest.raises(ConfigError, match=f"BPE-dropout needs a tokenizer of type bpe, found {kind}"):
        BpeDropout(Tokenizer.train(TEXTS, kind, 400), 0.1)


@pytest.mark.parametrize("chance", [-0.1, 1.0, 1.5, float("nan")])
def test_probabilities_outside_0_to_1_are_refused(chance: float) -> None:
    with pytest.raises(ConfigError, match=f"at least 0 and less than 1, found {chance}"):
        BpeDropout(TRAINED, chance)


def test_ids_that_are_no_text_are_refused() -> None:
    (ids,) = TRAINED.encode(["A dog"])
    with pytest.raises(DataError, match="without special tokens, found '⟨s⟩'"):
        BpeDropout(TRAINED, 0.1)([[BOS, *ids]], ["key"])
    (ids,) = BpeDropout(TRAINED, 0.999999)(TRAINED.encode(["犬"]), ["key"])
    with pytest.raises(DataError, match="needs ids of complete UTF-8 characters without special tokens, found 'ĠçĬ'"):
        BpeDropout(TRAINED, 0.1)([ids[:-1]], ["key"])

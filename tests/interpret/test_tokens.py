import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.interpret.tokens import TokenizedText, candidates, shown
from heed.text.tokenizer import Tokenizer, TokenizerType

TEXTS = ["the old cat", "größer als", "日本語の猫", "a 🐈 sees", "it's  two"] * 3
KINDS: list[TokenizerType] = ["bpe", "unigram", "words", "characters", "bytes"]
TOKENIZERS = {kind: Tokenizer.train(TEXTS, kind, 300) for kind in KINDS}


def test_each_token_has_its_span_of_the_text() -> None:
    tokens = TokenizedText.of(TOKENIZERS["words"], TOKENIZERS["words"].encode(["the old cat"])[0], after=(2,))
    assert tokens.text == "the old cat"
    assert tokens.tokens == (" the", " old", " cat", "⟨/s⟩")
    # The space that the tokenizer adds before the text is in no span.
    assert tokens.spans == ((0, 3), (3, 7), (7, 11), (11, 11))
    with_bos = TokenizedText.of(TOKENIZERS["words"], tokens.ids[:-1], before=(1,))
    assert (with_bos.ids[0], with_bos.tokens[0], with_bos.spans[0]) == (1, "⟨s⟩", (0, 0))
    assert with_bos.spans[1:] == tokens.spans[:-1]


def test_the_bytes_of_one_character_all_have_its_span() -> None:
    tokens = TokenizedText.of(TOKENIZERS["bytes"], TOKENIZERS["bytes"].encode(["aü🐈b"])[0])
    assert tokens.tokens == ("a", *"��", *"����", "b")
    assert tokens.spans == ((0, 1), *[(1, 2)] * 2, *[(2, 3)] * 4, (3, 4))


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=20))
def test_spans_cover_any_text_from_its_beginning_to_its_end(kind: TokenizerType, text: str) -> None:
    tokens = TokenizedText.of(TOKENIZERS[kind], TOKENIZERS[kind].encode([text])[0])
    assert tokens.text == text
    covered = 0
    for token, (start, end) in zip(tokens.tokens, tokens.spans, strict=True):
        assert covered - 1 <= start <= covered <= end
        if "�" not in token + text:
            assert text[start:end] in (token, token[1:])
        covered = end
    assert covered == len(text)


@given(ids=st.lists(st.integers(3, TOKENIZERS["bytes"].vocab_size - 1), max_size=12))
def test_spans_cover_output_that_is_not_valid_utf_8(ids: list[int]) -> None:
    tokens = TokenizedText.of(TOKENIZERS["bytes"], ids)
    touched = {index for start, end in tokens.spans for index in range(start, end)}
    assert touched == set(range(len(tokens.text)))
    assert all(end - start == 1 for start, end in tokens.spans)


def test_special_tokens_are_shown_by_name() -> None:
    assert shown(TOKENIZERS["bytes"], [0, 1, 2]) == ["⟨pad⟩", "⟨s⟩", "⟨/s⟩"]
    assert TokenizedText() == TokenizedText("", (), (), ())


def test_candidates_are_sorted_by_probability_then_by_id() -> None:
    log_probs = torch.tensor([[0.1, 0.1, 0.2, 0.3, 0.3]]).log()
    (top,) = candidates(log_probs, 4, TOKENIZERS["bytes"])
    assert [candidate.id for candidate in top] == [3, 4, 2, 0]
    assert [candidate.probability for candidate in top] == pytest.approx([0.3, 0.3, 0.2, 0.1])
    assert [candidate.token for candidate in top][2:] == ["⟨/s⟩", "⟨pad⟩"]

import pytest

from heed.errors import DataError
from heed.text.labels import FIRST_LABEL_ID, LabelEncoder, TextPairEncoder
from heed.text.tokenizer import EOS, Tokenizer

BYTES = Tokenizer.train([], "bytes", 259)


def test_labels_are_those_of_the_text_in_the_order_of_the_alphabet_and_one_id_each() -> None:
    labels = LabelEncoder.from_names(["no", "yes", "", "no", "maybe so"])
    assert labels.names == ("maybe so", "no", "yes")
    assert labels.encode(["yes", "", "maybe so"]) == [[FIRST_LABEL_ID + 2], [], [FIRST_LABEL_ID]]
    assert labels.vocab_size == FIRST_LABEL_ID + 3


@pytest.mark.parametrize("found", [[], ["one"], ["one", "", "one"]])
def test_one_label_is_nothing_to_choose_from(found: list[str]) -> None:
    with pytest.raises(DataError, match="at least two labels"):
        LabelEncoder.from_names(found)


def test_a_first_column_of_texts_is_taken_for_what_it_is() -> None:
    for texts, repeated, message in ((1000, 1, "1,000 different labels in 1,000"), (10_001, 3, "10,001 .* in 30,003")):
        with pytest.raises(
            DataError, match=rf"{message} texts: expected the label in the first column.* --columns 2,1"
        ):
            LabelEncoder.from_corpus(str(number) for number in range(texts) for _ in range(repeated))


def test_many_labels_are_no_mistake_where_they_are_given_or_each_has_several_texts() -> None:
    assert len(LabelEncoder.from_names(str(number) for number in range(10_001)).names) == 10_001
    assert len(LabelEncoder.from_corpus(str(number) for number in range(1000) for _ in range(2)).names) == 1000
    assert LabelEncoder.from_corpus(["a", "b", "c"]).names == ("a", "b", "c")  # too few texts to judge


def test_a_label_that_was_not_learnt_is_named() -> None:
    with pytest.raises(DataError, match="the label 'yess' is not one of the model's labels: did you mean 'yes'"):
        LabelEncoder(["yes", "no"]).encode(["yes", "yess"])


def test_two_texts_have_an_end_between_and_neither_may_be_missing() -> None:
    one, other = BYTES.encode(["ab", "cd e"])
    found = TextPairEncoder(BYTES).encode(["ab", "ab\tcd e", "ab\t", "\tcd e", ""])
    assert found == [one, [*one, EOS, *other], [], [], []]


def test_joined_texts_are_not_mistaken_for_others_in_the_cache() -> None:
    assert TextPairEncoder(BYTES).to_json() != BYTES.to_json()
    assert LabelEncoder(["a", "b"]).to_json() != LabelEncoder(["b", "a"]).to_json()

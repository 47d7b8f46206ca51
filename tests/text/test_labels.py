import pytest

from heed.errors import DataError
from heed.text.labels import FIRST_LABEL_ID, LabelEncoder, TextPairEncoder
from heed.text.tokenizer import EOS, Tokenizer

BYTES = Tokenizer.train([], "bytes", 259)


def test_labels_are_sorted_and_have_one_id_each() -> None:
    labels = LabelEncoder.from_names(["no", "yes", "", "no", "maybe so"])
    assert labels.names == ("maybe so", "no", "yes")
    assert labels.encode(["yes", "", "maybe so"]) == [[FIRST_LABEL_ID + 2], [], [FIRST_LABEL_ID]]
    assert labels.vocab_size == FIRST_LABEL_ID + 3


@pytest.mark.parametrize("names", [[], ["one"], ["one", "", "one"]])
def test_fewer_than_two_labels_are_refused(names: list[str]) -> None:
    with pytest.raises(DataError, match="at least two labels"):
        LabelEncoder.from_names(names)


def test_a_label_column_that_holds_texts_is_refused() -> None:
    for texts, repeated, message in ((1000, 1, "1,000 different labels in 1,000"), (10_001, 3, "10,001 .* in 30,003")):
        with pytest.raises(
            DataError, match=rf"{message} texts: expected the label in the first column.* --columns 2,1"
        ):
            LabelEncoder.from_corpus(str(number) for number in range(texts) for _ in range(repeated))


def test_many_labels_are_accepted_if_given_by_name_or_with_several_texts_each() -> None:
    assert len(LabelEncoder.from_names(str(number) for number in range(10_001)).names) == 10_001
    assert len(LabelEncoder.from_corpus(str(number) for number in range(1000) for _ in range(2)).names) == 1000
    assert LabelEncoder.from_corpus(["a", "b", "c"]).names == ("a", "b", "c")  # too few texts to judge


def test_an_unknown_label_is_refused_with_a_suggestion() -> None:
    with pytest.raises(DataError, match="the label 'yess' is not one of the model's labels: did you mean 'yes'"):
        LabelEncoder(["yes", "no"]).encode(["yes", "yess"])


def test_text_pairs_are_joined_by_eos_and_empty_if_one_text_is_missing() -> None:
    first, second = BYTES.encode(["ab", "cd e"])
    ids = TextPairEncoder(BYTES).encode(["ab", "ab\tcd e", "ab\t", "\tcd e", ""])
    assert ids == [first, [*first, EOS, *second], [], [], []]


def test_encoders_that_differ_have_different_json() -> None:
    assert TextPairEncoder(BYTES).to_json() != BYTES.to_json()
    assert LabelEncoder(["a", "b"]).to_json() != LabelEncoder(["b", "a"]).to_json()

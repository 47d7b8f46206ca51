from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.sentences import sentence_starts


def split_sentences(text: str, language: str = "") -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *sentence_starts(text, language), len(text)])]


@pytest.mark.parametrize(
    ("language", "marked"),  # | where a new sentence begins
    [
        ("en", "The old cat sees a red bird. |My map is beautiful."),
        ("en", "Really?! |Yes. |No... |Perhaps… |Good."),
        ("en", 'He said "No." |Then he left. |"Why?" she asked. |(It rained.) |So.'),
        ("en", "Dr. Smith met Mr. J. R. Jones at 5 p.m. |They talked."),
        ("en", "See Fig. 3 and No. 5 of vol. 2. |No. |That is wrong, e.g. Berlin vs. Paris, i.e. both."),
        ("en", "Version 2.0 is out. |It costs 3.50 dollars at example.com. |Buy it!"),
        ("en", "So do I. |He was 25. |She was 30."),
        ("en", "1. Introduction"),
        ("en", "it rains. |it pours! |does it?"),
        ("en", "Yahoo! is a company. |Ok."),
        ("de", "Am 3. Mai kam Dr. Huber z. B. mit dem Zug. |Das war gut."),
        ("de", "„Komm!“ sagte er. |„Ich komme.“ |Sie ging bzw. Er blieb."),
        ("de", "Er hatte 12. |Sie 140. |Gut.".replace("12. |", "12. ")),
        ("fr", "« Viens ! » dit-il. |« Non. » |Il part. |Quoi ? |M. Dupont et Mme. Durand !"),
        ("es", "¿Qué? |¡No! |Vale."),
        ("ru", "Это А. С. Пушкин. |Он поэт. |Да?"),
        ("el", "Καλημέρα. |Τι κάνεις; Καλά."),
        ("zh", "你好。|今天天气很好！|是吗？|好。"),
        ("ja", "今日は晴れ。|「行く。帰る。」と言った。|はい！"),
        ("hi", "यह एक घर है। |वह बड़ा है।"),
        ("ar", "ما اسمك؟ |اسمي علي. |حسنا."),
        ("ur", "یہ گھر ہے۔ |وہ بڑا ہے۔"),
        ("am", "ሰላም። |እንዴት ነህ፧ |ደህና።"),
        ("hy", "Բարեւ։ |Ինչպես ես։"),
        ("my", "မင်္ဂလာပါ။ |နေကောင်းလား။"),
        ("km", "សួស្តី។ |អរគុណ។"),
        ("en", "a man is walking . |he has a dog ."),
        ("de", "Ein Mann geht . |Er hat einen Hund ."),
        ("en", "... and then? |Nothing"),
        ("en", "no mark at all"),
        ("en", ""),
    ],
)
def test_sentences_start_at_the_marked_positions(language: str, marked: str) -> None:
    assert split_sentences(marked.replace("|", ""), language) == marked.split("|")


@given(
    st.text(alphabet=st.sampled_from("abA1.!?… \t。「」।\"'”»()-é犬"), max_size=80), st.sampled_from(["", "en", "de"])
)
def test_sentence_starts_are_sorted_inside_the_text_and_not_at_white_space(text: str, language: str) -> None:
    starts = sentence_starts(text, language)
    assert starts == sorted(set(starts))
    assert all(0 < start < len(text) and not text[start].isspace() for start in starts)


@given(st.text(max_size=80))
def test_sentences_join_to_the_text(text: str) -> None:
    assert "".join(split_sentences(text)) == text


@pytest.mark.parametrize("unit", [".", ". ", "。", "「", "「。", "。」", "a. ", '."', "...... ", "A.A.A.", "((( ", " "])
def test_splitting_time_is_linear_in_the_length_of_the_text(unit: str) -> None:
    """Quadratic time on a text of this length would take hours."""
    text = unit * (300_000 // len(unit))
    assert all(0 < start < len(text) for start in sentence_starts(text))

import pytest

from heed.errors import ConfigError
from heed.text.corpus import Corpus
from heed.text.language_codes import check_language_code, infer_languages


@pytest.mark.parametrize(
    ("source", "target", "codes"),
    [
        ("train.en", "train.de", "en de"),
        ("data/train.en.gz", "data/train.de", "en de"),
        ("train.tok.en", "train.tok.de", "en de"),
        ("train.en.txt", "train.de.txt", "en de"),
        ("europarl-v7.de-en.de", "europarl-v7.de-en.en", "de en"),
        ("en/train.txt", "de/train.txt", "en de"),
        ("en.txt", "fr.txt", "en fr"),
        ("train_en.txt", "train_fr.txt", "en fr"),
        ("my.corpus.en", "korpus.de", "en de"),
        ("train.EN", "train.DE", "en de"),
        ("train.hsb", "train.de", "hsb de"),
        ("train.pt-BR", "train.en", "pt-BR en"),
        ("train.zh_CN", "train.en", "zh-CN en"),
        ("train.eng_Latn", "train.zho_Hans", "eng-Latn zho-Hans"),
        ("src-train.txt", "tgt-train.txt", None),
        ("train.src", "train.tgt", None),
        ("train.txt", "train.tok", None),
        ("train.tok", "train.bpe", None),
        ("a.en", "b.en", None),  # one language
        ("train.en", "train.bpe", None),
    ],
)
def test_two_file_names_say_their_languages_where_they_differ(source: str, target: str, codes: str | None) -> None:
    found = infer_languages([Corpus(source, target)])
    assert [(one.source, one.target, one.origin) for one in found] == (
        [] if codes is None else [(*codes.split(), "the file names")]
    )


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("corpus.en-de.tsv", "en de"),
        ("wiki.eng-deu.tsv.gz", "eng deu"),
        ("train_en_de.jsonl", "en de"),
        ("wmt14-en-de.tsv", "en de"),
        ("en-de/train.tsv", "en de"),
        ("hsb-de.tsv", "hsb de"),
        ("corpus.en.de.tsv", "en de"),
        ("EN-FR.tsv", "en fr"),
        ("train.tsv", None),
        ("test_run.en.tsv", None),
        ("clean.tsv", None),
        ("is-it-clean.tsv", None),
    ],
)
def test_the_name_of_a_file_of_pairs_says_both_languages_side_by_side(name: str, codes: str | None) -> None:
    found = infer_languages([Corpus(pairs=name)])
    assert [(one.source, one.target) for one in found] == ([] if codes is None else [tuple(codes.split())])


def test_json_keys_say_languages_before_the_file_name_does() -> None:
    corpus = Corpus(pairs="a.en-de.jsonl", source_key="translation.de", target_key="translation.en")
    assert [(one.source, one.target, one.origin) for one in infer_languages([corpus])] == [
        ("de", "en", "the JSON keys")
    ]


def test_corpora_that_disagree_give_both_answers_and_texts_with_labels_or_alone_none() -> None:
    corpora = [Corpus("a.en", "a.de"), Corpus("b.en", "b.de"), Corpus("c.en", "c.fr")]
    assert [(one.source, one.target) for one in infer_languages(corpora)] == [("en", "de"), ("en", "fr")]
    assert infer_languages([Corpus(pairs="a.en-de.tsv", labelled=True), Corpus(text="wiki.en")]) == []


@pytest.mark.parametrize("code", ["english", "", "e", "en de", "../x", "auto"])
def test_what_is_no_code_is_refused_with_examples(code: str) -> None:
    with pytest.raises(ConfigError, match=f"--source-language '{code}': expected a language code such as en"):
        check_language_code(code, "--source-language")


def test_a_code_need_not_be_on_the_list_to_be_given() -> None:
    assert [check_language_code(code, "") for code in ("xx", "tok", "pt-BR", "zh-Hans")] == [
        "xx",
        "tok",
        "pt-BR",
        "zh-Hans",
    ]

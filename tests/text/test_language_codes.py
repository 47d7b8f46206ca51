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
        ("a.en", "b.en", None),  # the same language twice
        ("train.en", "train.bpe", None),
    ],
)
def test_languages_are_inferred_from_the_parts_of_two_file_names_that_differ(
    source: str, target: str, codes: str | None
) -> None:
    languages = infer_languages([Corpus(source, target)])
    assert [(pair.source, pair.target, pair.origin) for pair in languages] == (
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
def test_languages_are_inferred_from_adjacent_codes_in_the_name_of_a_file_of_pairs(
    name: str, codes: str | None
) -> None:
    languages = infer_languages([Corpus(pairs=name)])
    assert [(pair.source, pair.target) for pair in languages] == ([] if codes is None else [tuple(codes.split())])


def test_languages_in_json_keys_take_precedence_over_the_file_name() -> None:
    corpus = Corpus(pairs="a.en-de.jsonl", source_key="translation.de", target_key="translation.en")
    assert [(pair.source, pair.target, pair.origin) for pair in infer_languages([corpus])] == [
        ("de", "en", "the JSON keys")
    ]


def test_different_corpora_give_all_their_languages_and_labelled_or_monolingual_ones_none() -> None:
    corpora = [Corpus("a.en", "a.de"), Corpus("b.en", "b.de"), Corpus("c.en", "c.fr")]
    assert [(pair.source, pair.target) for pair in infer_languages(corpora)] == [("en", "de"), ("en", "fr")]
    assert infer_languages([Corpus(pairs="a.en-de.tsv", labelled=True), Corpus(text="wiki.en")]) == []


@pytest.mark.parametrize("code", ["english", "", "e", "en de", "../x", "auto"])
def test_an_invalid_language_code_is_refused_with_examples(code: str) -> None:
    with pytest.raises(ConfigError, match=f"--source-language '{code}': expected a language code such as en"):
        check_language_code(code, "--source-language")


def test_a_valid_code_of_an_unknown_language_is_accepted() -> None:
    assert [check_language_code(code, "") for code in ("xx", "tok", "pt-BR", "zh-Hans")] == [
        "xx",
        "tok",
        "pt-BR",
        "zh-Hans",
    ]

"""Every planted error is reported at its line, and clean text has no findings."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest

from heed.config import DataConfig
from heed.corpus_checks import checks
from heed.corpus_checks.checks import check_corpora
from heed.corpus_checks.text_errors import CorpusReport, TextErrorType
from heed.errors import DataError
from heed.text.corpus import Corpus
from tests.corpus_checks.planted_errors import PLANTED_ERRORS, SentencePairs, clean_pairs, generated_pairs

DATA = DataConfig(vocab_size=400)


def write_corpus(folder: Path, name: str, sentences: SentencePairs) -> Corpus:
    for side, ending in enumerate(("en", "fr")):
        lines = "".join(f"{pair[side]}\n" for pair in sentences)
        (folder / f"{name}.{ending}").write_text(lines, encoding="utf-8", newline="\n")
    return Corpus(str(folder / f"{name}.en"), str(folder / f"{name}.fr"))


def report_on(folder: Path, training: SentencePairs, validation: SentencePairs | None = None) -> CorpusReport:
    held_out = [] if validation is None else [write_corpus(folder, "valid", validation)]
    return check_corpora([write_corpus(folder, "train", training)], held_out, DATA, max_length=60)


def counts(report: CorpusReport) -> dict[TextErrorType, int]:
    return {finding.kind: finding.count for finding in report.findings}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_corpus_has_no_findings(tmp_path: Path, seed: int) -> None:
    report = report_on(tmp_path, generated_pairs("train", 500, seed), generated_pairs("valid", 100, seed))
    assert (report.findings, report.notes) == ((), ())
    assert report.pairs == 500


@pytest.mark.parametrize("kind", PLANTED_ERRORS)
def test_a_planted_error_is_reported_at_its_lines_and_no_other_is(tmp_path: Path, kind: TextErrorType) -> None:
    plant, ending = PLANTED_ERRORS[kind]
    sentences = clean_pairs(500)
    lines = sorted(random.Random(kind).sample(range(1, 501), 5))
    for line in lines:
        sentences[line - 1] = plant(sentences[line - 1])
    report = report_on(tmp_path, sentences)
    assert counts(report) == {kind: 5}
    examples = report.findings[0].examples
    assert [(example.file, example.line) for example in examples] == [
        (str(tmp_path / f"train.{ending}"), line) for line in lines[:3]
    ]
    shown = examples[0].texts
    planted = sentences[lines[0] - 1]
    if len(shown) == 1:
        assert shown[0].strip("…") in planted[ending == "fr"]
    else:
        assert shown == (planted[0][:200], planted[1][:200])


def test_every_error_type_has_a_test() -> None:
    tested_elsewhere = {
        "unreadable",
        "repeated",
        "ambiguous",
        "leaked",
        "leaked_source",
        "leaked_target",
        "unknown_label",
    }
    assert PLANTED_ERRORS.keys() | tested_elsewhere == set(get_args(TextErrorType))


def test_repeated_ambiguous_and_leaked_pairs_are_counted_like_with_dictionaries(tmp_path: Path) -> None:
    rng = random.Random(3)
    words = ["".join(rng.choices("ab", k=rng.randint(0, 4))) for _ in range(600)]
    training: SentencePairs = list(zip(words[:200], words[200:400], strict=True))
    validation: SentencePairs = list(zip(words[400:500], words[500:], strict=True))
    error_counts = counts(report_on(tmp_path, training, validation))
    full = [pair for pair in training if all(pair)]
    targets = defaultdict(set)
    for source, target in full:
        targets[source].add(target)
    assert error_counts["repeated"] == len(full) - len(set(full))
    assert error_counts["ambiguous"] == sum(len(translations) > 1 for translations in targets.values())
    held_out = [pair for pair in validation if all(pair)]
    assert error_counts["leaked"] == sum(pair in full for pair in held_out)
    one_side = [
        [pair[side] in {pair[side] for pair in full} and pair not in full for pair in held_out] for side in (0, 1)
    ]
    assert [error_counts["leaked_source"], error_counts["leaked_target"]] == [sum(side) for side in one_side]


def test_findings_about_two_pairs_name_both_lines(tmp_path: Path) -> None:
    sentences, valid = clean_pairs(300), generated_pairs("valid", 50, 0)[:]
    sentences[250] = (f" {sentences[20][0]}", sentences[20][1])  # the same pair up to spaces
    sentences[280] = (sentences[30][0], sentences[40][1])
    valid[4] = sentences[100]
    valid[6] = (sentences[110][0], valid[6][1])
    report = report_on(tmp_path, sentences, valid)
    first = {finding.kind: finding.examples[0] for finding in report.findings}
    assert (first["repeated"].line, first["repeated"].also) == (251, f"{tmp_path}/train.en:21")
    assert (first["ambiguous"].line, first["ambiguous"].also) == (281, f"{tmp_path}/train.en:31")
    assert (first["leaked"].file, first["leaked"].line) == (f"{tmp_path}/valid.en", 5)
    assert first["leaked"].also == f"{tmp_path}/train.en:101"
    assert (first["leaked_source"].line, first["leaked_source"].also) == (7, f"{tmp_path}/train.en:111")
    assert first["leaked_source"].texts == valid[6]


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_swapped_pairs_are_counted_exactly(tmp_path: Path, share: float) -> None:
    sentences, rng = clean_pairs(2000), random.Random(7)
    swapped = {line for line in range(1, 2001) if rng.random() < share}
    mixed = [pair[::-1] if line in swapped else pair for line, pair in enumerate(sentences, 1)]
    assert counts(report_on(tmp_path, mixed)) == {"swapped": len(swapped)}


def test_a_note_says_when_languages_cannot_be_identified(tmp_path: Path) -> None:
    english = [source for source, _ in clean_pairs(800)]
    report = report_on(tmp_path, list(zip(english[:400], english[400:], strict=True)))
    assert report.notes == (
        "both sides have similar trigrams (one language, or many swapped): swapped pairs cannot be found",
    )
    assert not {"swapped", "source_foreign", "target_foreign"} & counts(report).keys()
    report = report_on(tmp_path, [pair[::-1] for pair in clean_pairs(3)] + clean_pairs(190))
    assert report.notes == ("fewer than 200 pairs are too few to find texts in the wrong language",)
    assert report.findings == ()


def test_findings_do_not_depend_on_batch_and_sample_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = clean_pairs(600)
    for line, (plant, _) in zip(range(10, 600, 40), PLANTED_ERRORS.values(), strict=False):
        sentences[line] = plant(sentences[line])
    sentences[590] = sentences[0]
    expected = report_on(tmp_path, sentences)
    monkeypatch.setattr(checks, "_BATCH_PAIRS", 97)
    monkeypatch.setattr(checks, "_SAMPLE", 20_000)
    report = report_on(tmp_path, sentences)
    assert report.findings == expected.findings
    assert len(report.tokens) < len(expected.tokens) == 600
    assert report.lengths["source", "words"] == expected.lengths["source", "words"]


def test_lengths_are_counted_for_both_sides_and_tokens_by_the_configured_tokenizer(tmp_path: Path) -> None:
    sentences = clean_pairs(300)
    report = report_on(tmp_path, sentences)
    assert report.lengths["target", "characters"].total() == 300
    assert max(report.lengths["target", "characters"]) == max(len(target) for _, target in sentences)
    assert max(report.lengths["source", "words"]) == max(len(source.split()) for source, _ in sentences)
    as_bytes = check_corpora([write_corpus(tmp_path, "train", sentences)], [], DataConfig(tokenizer="bytes"))
    assert as_bytes.tokens[:, 1].tolist() == [len(target.encode()) for _, target in sentences]
    assert as_bytes.vocab_sizes == (259, 259)
    separate = DataConfig(tokenizer="words", separate_vocabularies=True, vocab_size=1000)
    source, target = check_corpora([write_corpus(tmp_path, "train", sentences)], [], separate).vocab_sizes
    assert source < target


def test_findings_of_several_corpora_name_their_file_and_line(tmp_path: Path) -> None:
    table = tmp_path / "more.tsv"
    sentences = clean_pairs(400)
    table.write_text("".join(f"{source}\t{target}\n" for source, target in sentences[300:399]) + "Yes.\t\n")
    report = check_corpora([write_corpus(tmp_path, "train", sentences[:300]), Corpus(pairs=str(table))], [], DATA)
    assert report.training == ((f"{tmp_path}/train.en + {tmp_path}/train.fr", 300), (str(table), 100))
    assert counts(report) == {"empty": 1}
    assert (report.findings[0].examples[0].file, report.findings[0].examples[0].line) == (str(table), 100)


def test_an_empty_corpus_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.en \+ .*train\.fr is empty"):
        report_on(tmp_path, [])


def monolingual(folder: Path, name: str, texts: list[str], **settings: Any) -> Corpus:
    """A corpus of texts, one per line."""
    (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return Corpus(text=str(folder / name), **settings)


def labelled(folder: Path, name: str, rows: list[tuple[str, str]]) -> Corpus:
    """A corpus of labels with a text, or with two texts separated by a tab."""
    (folder / name).write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8", newline="\n")
    return Corpus(pairs=str(folder / name), labelled=True)


def test_clean_monolingual_text_has_no_findings_and_only_target_lengths(tmp_path: Path) -> None:
    texts = [target for _, target in clean_pairs(500)]
    report = check_corpora([monolingual(tmp_path, "t", texts)], [monolingual(tmp_path, "v", ["Un autre texte."])], DATA)
    assert (report.findings, report.notes, report.form) == ((), (), "texts")
    assert {side for side, _ in report.lengths} == {"target"}
    assert report.tokens.shape == (500, 2)
    assert not report.tokens[:, 0].any()
    assert report.tokens[:, 1].min() > 0


def test_errors_in_monolingual_text_are_reported_at_their_lines(tmp_path: Path) -> None:
    texts = [target for _, target in clean_pairs(300)]
    texts[10], texts[20], texts[30] = "", f" {texts[5]}", " ".join([texts[1]] * 60)
    texts[40] += " &amp;"
    validation = [monolingual(tmp_path, "v", [texts[7], "Un autre texte."])]
    report = check_corpora([monolingual(tmp_path, "t", texts)], validation, DATA)
    assert counts(report) == {"empty": 1, "repeated": 1, "spaces": 1, "too_long": 1, "markup": 1, "leaked": 1}
    (leaked,) = next(finding for finding in report.findings if finding.kind == "leaked").examples
    assert leaked.texts == (texts[7],)
    assert (leaked.file, leaked.line, leaked.also) == (str(tmp_path / "v"), 1, f"{tmp_path / 't'}:8")


def test_findings_in_documents_name_their_first_line_and_no_document_is_too_long(tmp_path: Path) -> None:
    texts = [target for _, target in clean_pairs(60)]
    lines = [*texts[:20], "", *texts[20:40], "", "", *texts[40:60], "", *texts[20:40]]
    report = check_corpora(
        [monolingual(tmp_path, "t", lines, documents=True)], [], DATA.model_copy(update={"documents": True})
    )
    assert report.pairs == 4
    assert counts(report) == {"repeated": 1}
    (example,) = report.findings[0].examples
    assert (example.line, example.also) == (65, f"{tmp_path / 't'}:22")


def test_labels_are_counted_and_their_errors_are_reported(tmp_path: Path) -> None:
    rows = [("a" if number % 3 else "b", source) for number, (source, _) in enumerate(clean_pairs(300))]
    rows[10] = (rows[10][0], "")
    rows[20] = ("b" if rows[5][0] == "a" else "a", rows[5][1])
    rows[30] = rows[6]
    held_out = [("c", "A new text."), rows[7], ("b" if rows[8][0] == "a" else "a", rows[8][1]), ("a", "Another\tpair.")]
    report = check_corpora([labelled(tmp_path, "t.tsv", rows)], [labelled(tmp_path, "v.tsv", held_out)], DATA)
    assert counts(report) == dict.fromkeys(
        ("empty", "ambiguous", "repeated", "unknown_label", "leaked", "leaked_source"), 1
    )
    assert report.labels["c"] == (0, 1)
    assert sum(in_training for in_training, _ in report.labels.values()) == 300
    assert set(report.tokens[:, 1].tolist()) == {1}
    ambiguous = next(finding for finding in report.findings if finding.kind == "ambiguous").examples[0]
    assert (ambiguous.line, ambiguous.also) == (21, f"{tmp_path / 't.tsv'}:6")
    assert ambiguous.texts == (f"{rows[20][0]}: {rows[20][1]}",)


def test_the_tab_between_two_labelled_texts_is_no_error(tmp_path: Path) -> None:
    rows = [
        ("a" if number % 2 else "b", f"{source}\t{target}") for number, (source, target) in enumerate(clean_pairs(300))
    ]
    assert counts(check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)) == {}
    rows[9] = ("a", f"{clean_pairs(300)[9][0]}\t")
    assert counts(check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)) == {"empty": 1}


def test_every_invalid_row_is_reported_and_the_others_keep_their_line_numbers(tmp_path: Path) -> None:
    rows = ["\t".join(pair) for pair in clean_pairs(300)]
    rows[4], rows[9], rows[17] = "one column", "", "a\tb\tc"
    rows[200] = rows[100]
    (tmp_path / "a.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    report = check_corpora([Corpus(pairs=f"{tmp_path}/a.tsv")], [], DATA)
    assert counts(report) == {"unreadable": 2, "empty": 1, "repeated": 1}
    by_kind = {finding.kind: finding.examples for finding in report.findings}
    assert [(example.file, example.line) for example in by_kind["unreadable"]] == [
        (f"{tmp_path}/a.tsv", line) for line in (5, 18)
    ]
    assert by_kind["unreadable"][0].texts == ("expected 2 columns (source and target), found 1",)
    assert (by_kind["empty"][0].line, by_kind["repeated"][0].line) == (10, 201)
    assert by_kind["repeated"][0].also == f"{tmp_path}/a.tsv:101"
    (tmp_path / "b.tsv").write_text("no\ntabs\n")
    with pytest.raises(DataError, match=r"b\.tsv has no valid row: expected 2 columns"):
        check_corpora([Corpus(pairs=f"{tmp_path}/b.tsv")], [], DATA)


def test_swapped_label_and_text_columns_are_reported(tmp_path: Path) -> None:
    rows = [(source, "long" if len(source) > 40 else "short") for source, _ in clean_pairs(100)]
    report = check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)
    (finding,) = [each_finding for each_finding in report.findings if each_finding.kind == "swapped"]
    assert (finding.count, finding.examples[0].line) == (100, 1)


def test_targets_beyond_the_maximum_translation_length_are_counted_with_the_setting_that_allows_them(
    tmp_path: Path,
) -> None:
    sentences = clean_pairs(300)
    for line in (5, 7):
        sentences[line] = PLANTED_ERRORS["cut_off"][0](sentences[line])
    corpus = write_corpus(tmp_path, "train", sentences)
    for max_length, count in ((None, {}), (60, {"cut_off": 2}), (400, {})):
        report = check_corpora([corpus], [], DATA, max_length=max_length)
        assert counts(report) == count
    (finding,) = check_corpora([corpus], [], DATA, max_length=60).findings
    assert finding.advice == "search.max_length=200 would allow all of them."
    short = check_corpora([corpus], [], DATA, max_length=10)
    assert counts(short)["cut_off"] > 290


def test_corpora_of_different_forms_cannot_be_mixed(tmp_path: Path) -> None:
    corpora = [monolingual(tmp_path, "t", ["a"]), labelled(tmp_path, "t.tsv", [("a", "b")])]
    with pytest.raises(DataError, match=r"cannot be mixed, found \['labelled', 'texts'\]"):
        check_corpora(corpora, [], DATA)

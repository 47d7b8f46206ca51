"""Every fault that is planted is found where it is, and nothing is found where nothing is wrong."""

import codecs
import functools
import random
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from heed.config import DataConfig
from heed.corpus_checks import checks as health
from heed.corpus_checks.checks import check_corpora
from heed.corpus_checks.text_errors import CorpusReport, TextErrorType
from heed.decoding import engine as decoding_engine
from heed.errors import DataError
from heed.microworld.corpus import DatasetSplit
from heed.microworld.corpus import corpus as microworld
from heed.text.corpus import Corpus

Sentences = list[tuple[str, str]]
DATA = DataConfig(vocab_size=400)


@functools.cache
def generated(split: DatasetSplit, count: int, seed: int) -> Sentences:
    return [(one.source, one.target) for one in microworld(split, count, seed)]


def world(count: int) -> Sentences:
    return generated("train", 2000, 0)[:count]


def written(folder: Path, name: str, sentences: Sentences) -> Corpus:
    for side, ending in enumerate(("en", "fr")):
        lines = "".join(f"{both[side]}\n" for both in sentences)
        (folder / f"{name}.{ending}").write_text(lines, encoding="utf-8", newline="\n")
    return Corpus(str(folder / f"{name}.en"), str(folder / f"{name}.fr"))


def examined(folder: Path, training: Sentences, validation: Sentences | None = None) -> CorpusReport:
    held_out = [] if validation is None else [written(folder, "valid", validation)]
    return check_corpora([written(folder, "train", training)], held_out, DATA)


def counts(found: CorpusReport) -> dict[TextErrorType, int]:
    return {finding.kind: finding.count for finding in found.findings}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_a_clean_corpus_nothing_is_found(tmp_path: Path, seed: int) -> None:
    found = examined(tmp_path, generated("train", 500, seed), generated("valid", 100, seed))
    assert (found.findings, found.notes) == ((), ())
    assert found.pairs == 500


def accents_apart(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0], unicodedata.normalize("NFD", pair[1] + " L'été.")


# Each kind, what is done to a pair, and in which file the fault is.
PLANTED: dict[TextErrorType, tuple[Callable[[tuple[str, str]], tuple[str, str]], str]] = {
    "empty": (lambda pair: (pair[0], ""), "en"),
    "copied": (lambda pair: (pair[0], pair[0]), "en"),
    "swapped": (lambda pair: (pair[1], pair[0]), "en"),
    "source_foreign": (lambda pair: (pair[1] + " Le roi.", pair[1]), "en"),
    "target_foreign": (lambda pair: (pair[0], pair[0] + " The king."), "en"),
    "unlike": (lambda pair: (pair[0], codecs.encode(pair[1], "rot13")), "en"),
    "unequal": (lambda pair: (pair[0], " ".join([pair[1]] * 6)), "en"),
    "cut_off": (lambda pair: (" ".join([pair[0]] * 20)[:120].strip(), " ".join([pair[1]] * 20)[:300].strip()), "en"),
    "too_long": (lambda pair: (" ".join([pair[0]] * 60), " ".join([pair[1]] * 60)), "en"),
    "replacement": (lambda pair: (pair[0], pair[1][:3] + "\ufffd" + pair[1][3:]), "fr"),
    "mojibake": (lambda pair: (pair[0], pair[1] + " CafÃ©."), "fr"),
    "control": (lambda pair: (pair[0][:3] + "\x07" + pair[0][3:], pair[1]), "en"),
    "spaces": (lambda pair: (pair[0], pair[1].replace(" ", "\u00a0", 1)), "fr"),
    "markup": (lambda pair: (pair[0] + " <b>Salt</b> &amp; pepper.", pair[1] + " Sel et poivre."), "en"),
    "decomposed": (accents_apart, "fr"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found_where_it_is_and_no_other(tmp_path: Path, kind: TextErrorType) -> None:
    plant, ending = PLANTED[kind]
    sentences = world(500)
    lines = sorted(random.Random(kind).sample(range(1, 501), 5))
    for line in lines:
        sentences[line - 1] = plant(sentences[line - 1])
    found = examined(tmp_path, sentences)
    assert counts(found) == {kind: 5}
    examples = found.findings[0].examples
    assert [(example.file, example.line) for example in examples] == [
        (str(tmp_path / f"train.{ending}"), line) for line in lines[:3]
    ]
    shown = examples[0].texts
    planted = sentences[lines[0] - 1]
    if len(shown) == 1:
        assert shown[0].strip("…") in planted[ending == "fr"]
    else:
        assert shown == (planted[0][:200], planted[1][:200])


def test_every_kind_of_fault_has_a_test() -> None:
    elsewhere = {"unreadable", "repeated", "ambiguous", "leaked", "leaked_source", "leaked_target", "unknown_label"}
    assert PLANTED.keys() | elsewhere == set(get_args(TextErrorType))


def test_what_occurs_again_is_what_a_dictionary_says(tmp_path: Path) -> None:
    draw = random.Random(3)
    words = ["".join(draw.choices("ab", k=draw.randint(0, 4))) for _ in range(600)]
    training: Sentences = list(zip(words[:200], words[200:400], strict=True))
    validation: Sentences = list(zip(words[400:500], words[500:], strict=True))
    found = counts(examined(tmp_path, training, validation))
    full = [pair for pair in training if all(pair)]
    targets = defaultdict(set)
    for source, target in full:
        targets[source].add(target)
    assert found["repeated"] == len(full) - len(set(full))
    assert found["ambiguous"] == sum(len(several) > 1 for several in targets.values())
    held_out = [pair for pair in validation if all(pair)]
    assert found["leaked"] == sum(pair in full for pair in held_out)
    one_side = [
        [pair[side] in {pair[side] for pair in full} and pair not in full for pair in held_out] for side in (0, 1)
    ]
    assert [found["leaked_source"], found["leaked_target"]] == [sum(side) for side in one_side]


def test_a_pair_of_pairs_is_shown_with_both_places(tmp_path: Path) -> None:
    sentences, valid = world(300), generated("valid", 50, 0)[:]
    sentences[250] = (f" {sentences[20][0]}", sentences[20][1])  # spaces do not make it another
    sentences[280] = (sentences[30][0], sentences[40][1])
    valid[4] = sentences[100]
    valid[6] = (sentences[110][0], valid[6][1])
    found = examined(tmp_path, sentences, valid)
    first = {finding.kind: finding.examples[0] for finding in found.findings}
    assert (first["repeated"].line, first["repeated"].also) == (251, f"{tmp_path}/train.en:21")
    assert (first["ambiguous"].line, first["ambiguous"].also) == (281, f"{tmp_path}/train.en:31")
    assert (first["leaked"].file, first["leaked"].line) == (f"{tmp_path}/valid.en", 5)
    assert first["leaked"].also == f"{tmp_path}/train.en:101"
    assert (first["leaked_source"].line, first["leaked_source"].also) == (7, f"{tmp_path}/train.en:111")
    assert first["leaked_source"].texts == valid[6]


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_swapped_pairs_are_found_and_no_others(tmp_path: Path, share: float) -> None:
    sentences, draw = world(2000), random.Random(7)
    swapped = {line for line in range(1, 2001) if draw.random() < share}
    mixed = [pair[::-1] if line in swapped else pair for line, pair in enumerate(sentences, 1)]
    assert counts(examined(tmp_path, mixed)) == {"swapped": len(swapped)}


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    english = [source for source, _ in world(800)]
    found = examined(tmp_path, list(zip(english[:400], english[400:], strict=True)))
    assert found.notes == (
        "both sides have similar trigrams (one language, or many swapped): swapped pairs cannot be found",
    )
    assert not {"swapped", "source_foreign", "target_foreign"} & counts(found).keys()
    found = examined(tmp_path, [pair[::-1] for pair in world(3)] + world(190))
    assert found.notes == ("fewer than 200 pairs are too few to find texts in the wrong language",)
    assert found.findings == ()


def test_findings_do_not_depend_on_how_the_text_is_cut_or_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = world(600)
    for line, (plant, _) in zip(range(10, 600, 40), PLANTED.values(), strict=False):
        sentences[line] = plant(sentences[line])
    sentences[590] = sentences[0]
    whole = examined(tmp_path, sentences)
    monkeypatch.setattr(health, "_BATCH_PAIRS", 97)
    monkeypatch.setattr(health, "_SAMPLE", 20_000)
    cut = examined(tmp_path, sentences)
    assert cut.findings == whole.findings
    assert len(cut.tokens) < len(whole.tokens) == 600
    assert cut.lengths["source", "words"] == whole.lengths["source", "words"]


def test_lengths_are_counted_on_every_side_and_tokens_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    sentences = world(300)
    found = examined(tmp_path, sentences)
    assert found.lengths["target", "characters"].total() == 300
    assert max(found.lengths["target", "characters"]) == max(len(target) for _, target in sentences)
    assert max(found.lengths["source", "words"]) == max(len(source.split()) for source, _ in sentences)
    as_bytes = check_corpora([written(tmp_path, "train", sentences)], [], DataConfig(tokenizer="bytes"))
    assert as_bytes.tokens[:, 1].tolist() == [len(target.encode()) for _, target in sentences]
    assert as_bytes.vocab_sizes == (259, 259)
    apart = DataConfig(tokenizer="words", separate_vocabularies=True, vocab_size=1000)
    source, target = check_corpora([written(tmp_path, "train", sentences)], [], apart).vocab_sizes
    assert source < target


def test_several_corpora_keep_their_names_and_lines(tmp_path: Path) -> None:
    table = tmp_path / "more.tsv"
    sentences = world(400)
    table.write_text("".join(f"{one}\t{other}\n" for one, other in sentences[300:399]) + "Yes.\t\n")
    found = check_corpora([written(tmp_path, "train", sentences[:300]), Corpus(pairs=str(table))], [], DATA)
    assert found.training == ((f"{tmp_path}/train.en + {tmp_path}/train.fr", 300), (str(table), 100))
    assert counts(found) == {"empty": 1}
    assert (found.findings[0].examples[0].file, found.findings[0].examples[0].line) == (str(table), 100)


def test_nothing_at_all_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.en \+ .*train\.fr is empty"):
        examined(tmp_path, [])


def alone(folder: Path, name: str, texts: list[str], **settings: Any) -> Corpus:
    """Texts, a line each."""
    (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return Corpus(text=str(folder / name), **settings)


def labelled(folder: Path, name: str, rows: list[tuple[str, str]]) -> Corpus:
    """A label and a text, or two with a tab between."""
    (folder / name).write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8", newline="\n")
    return Corpus(pairs=str(folder / name), labelled=True)


def test_of_clean_texts_alone_nothing_is_found_and_one_side_is_counted(tmp_path: Path) -> None:
    texts = [target for _, target in world(500)]
    found = check_corpora([alone(tmp_path, "t", texts)], [alone(tmp_path, "v", ["Un autre texte."])], DATA)
    assert (found.findings, found.notes, found.form) == ((), (), "texts")
    assert {side for side, _ in found.lengths} == {"target"}
    assert found.tokens.shape == (500, 2)
    assert not found.tokens[:, 0].any()
    assert found.tokens[:, 1].min() > 0


def test_of_texts_alone_faults_are_found_where_they_are(tmp_path: Path) -> None:
    texts = [target for _, target in world(300)]
    texts[10], texts[20], texts[30] = "", f" {texts[5]}", " ".join([texts[1]] * 60)
    texts[40] += " &amp;"
    validation = [alone(tmp_path, "v", [texts[7], "Un autre texte."])]
    found = check_corpora([alone(tmp_path, "t", texts)], validation, DATA)
    assert counts(found) == {"empty": 1, "repeated": 1, "spaces": 1, "too_long": 1, "markup": 1, "leaked": 1}
    (leaked,) = next(one for one in found.findings if one.kind == "leaked").examples
    assert leaked.texts == (texts[7],)
    assert (leaked.file, leaked.line, leaked.also) == (str(tmp_path / "v"), 1, f"{tmp_path / 't'}:8")


def test_documents_are_shown_by_the_line_they_begin_on_and_are_never_too_long(tmp_path: Path) -> None:
    texts = [target for _, target in world(60)]
    lines = [*texts[:20], "", *texts[20:40], "", "", *texts[40:60], "", *texts[20:40]]
    found = check_corpora(
        [alone(tmp_path, "t", lines, documents=True)], [], DATA.model_copy(update={"documents": True})
    )
    assert found.pairs == 4
    assert counts(found) == {"repeated": 1}
    (example,) = found.findings[0].examples
    assert (example.line, example.also) == (65, f"{tmp_path / 't'}:22")


def test_labels_are_counted_and_what_is_wrong_with_them_is_found(tmp_path: Path) -> None:
    rows = [("a" if number % 3 else "b", source) for number, (source, _) in enumerate(world(300))]
    rows[10] = (rows[10][0], "")
    rows[20] = ("b" if rows[5][0] == "a" else "a", rows[5][1])
    rows[30] = rows[6]
    held_out = [("c", "A new text."), rows[7], ("b" if rows[8][0] == "a" else "a", rows[8][1]), ("a", "Another\tpair.")]
    found = check_corpora([labelled(tmp_path, "t.tsv", rows)], [labelled(tmp_path, "v.tsv", held_out)], DATA)
    assert counts(found) == dict.fromkeys(
        ("empty", "ambiguous", "repeated", "unknown_label", "leaked", "leaked_source"), 1
    )
    assert found.labels["c"] == (0, 1)
    assert sum(learnt for learnt, _ in found.labels.values()) == 300
    assert set(found.tokens[:, 1].tolist()) == {1}
    ambiguous = next(one for one in found.findings if one.kind == "ambiguous").examples[0]
    assert (ambiguous.line, ambiguous.also) == (21, f"{tmp_path / 't.tsv'}:6")
    assert ambiguous.texts == (f"{rows[20][0]}: {rows[20][1]}",)


def test_two_texts_with_a_label_are_no_text_with_a_tab_in_it(tmp_path: Path) -> None:
    rows = [("a" if number % 2 else "b", f"{source}\t{target}") for number, (source, target) in enumerate(world(300))]
    assert counts(check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)) == {}
    rows[9] = ("a", f"{world(300)[9][0]}\t")
    assert counts(check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)) == {"empty": 1}


def test_every_row_that_cannot_be_read_is_listed_and_the_others_keep_their_lines(tmp_path: Path) -> None:
    rows = ["\t".join(pair) for pair in world(300)]
    rows[4], rows[9], rows[17] = "one column", "", "a\tb\tc"
    rows[200] = rows[100]
    (tmp_path / "a.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    found = check_corpora([Corpus(pairs=f"{tmp_path}/a.tsv")], [], DATA)
    assert counts(found) == {"unreadable": 2, "empty": 1, "repeated": 1}
    by_kind = {finding.kind: finding.examples for finding in found.findings}
    assert [(one.file, one.line) for one in by_kind["unreadable"]] == [(f"{tmp_path}/a.tsv", line) for line in (5, 18)]
    assert by_kind["unreadable"][0].texts == ("expected 2 columns (source and target), found 1",)
    assert (by_kind["empty"][0].line, by_kind["repeated"][0].line) == (10, 201)
    assert by_kind["repeated"][0].also == f"{tmp_path}/a.tsv:101"
    (tmp_path / "b.tsv").write_text("no\ntabs\n")
    with pytest.raises(DataError, match=r"b\.tsv has no valid row: expected 2 columns"):
        check_corpora([Corpus(pairs=f"{tmp_path}/b.tsv")], [], DATA)


def test_labels_and_texts_that_are_swapped_are_noticed(tmp_path: Path) -> None:
    rows = [(source, "long" if len(source) > 40 else "short") for source, _ in world(100)]
    found = check_corpora([labelled(tmp_path, "t.tsv", rows)], [], DATA)
    (finding,) = [one for one in found.findings if one.kind == "swapped"]
    assert (finding.count, finding.examples[0].line) == (100, 1)


def test_targets_beyond_the_limit_of_a_translation_are_counted_with_the_setting_that_lets_them_through(
    tmp_path: Path,
) -> None:
    assert health._EXTRA_TOKENS == decoding_engine.MAX_EXTRA_TOKENS
    sentences = world(300)
    for line in (5, 7):
        sentences[line] = PLANTED["cut_off"][0](sentences[line])
    corpus = written(tmp_path, "train", sentences)
    for max_length, count in ((None, {"cut_off": 2}), (400, {})):
        found = check_corpora([corpus], [], DATA, max_length=max_length)
        assert counts(found) == count
    (finding,) = check_corpora([corpus], [], DATA).findings
    assert finding.advice == "search.max_length=200 would allow all of them."
    short = check_corpora([corpus], [], DATA, max_length=10)
    assert counts(short)["cut_off"] > 290


def test_texts_of_different_forms_are_refused_together(tmp_path: Path) -> None:
    both = [alone(tmp_path, "t", ["a"]), labelled(tmp_path, "t.tsv", [("a", "b")])]
    with pytest.raises(DataError, match=r"cannot be mixed, found \['labelled', 'texts'\]"):
        check_corpora(both, [], DATA)

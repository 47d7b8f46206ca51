import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import heed
from heed import ModelConfig, RunConfig, SearchConfig, Transformer, Translator
from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.config import DataConfig
from heed.decoding.alignment import word_alignment
from heed.decoding.engine import Engine
from heed.decoding.forced_decoding import token_log_probs
from heed.errors import InputError
from heed.inference.lazy_models import LazyModels, backend_of
from heed.inference.translation import Translation, restored
from heed.search_config import TranslateConfig
from heed.text.lexicon import Lexicon
from heed.text.normalization import Normalizer, TextStyle
from heed.text.sentence_split import SourceLengths, Splitter
from heed.text.spelling import Correction, SpellingCorrector
from heed.text.tokenizer import Tokenizer
from tests.serving.folders import make_folder

TEXTS = ["a dog runs", "the cat", "", "a bird sees the old dog and the cat", "  ", "dog", "a dog runs"]
TOKENIZER = Tokenizer.train(TEXTS * 3, "characters", 300)


def make(seed: int = 0, tokenizer: Tokenizer = TOKENIZER) -> Transformer:
    torch.manual_seed(seed)
    size = tokenizer.vocab_size
    config = ModelConfig(vocab_size=size, d_model=16, heads=2, encoder_layers=2, decoder_layers=3, d_ff=16)
    return Transformer(config).eval()


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator([make()], (TOKENIZER, TOKENIZER), SearchConfig(max_length=12), max_tokens=40)


def test_order_is_kept_and_each_text_is_translated_as_if_alone(translator: Translator) -> None:
    together = translator(TEXTS)
    assert together == [translator(text) for text in TEXTS]
    assert together[0] == together[-1]
    small = translator.translate(TEXTS, search=SearchConfig(max_length=12, tokens_per_batch=10))
    assert [translation.text for translation in small] == together


def test_white_space_is_kept(translator: Translator) -> None:
    assert translator(["", "  ", "\n"]) == ["", "  ", "\n"]
    translation = translator.translate([" "])[0]
    assert (translation.score, translation.tokens, translation.alignment, translation.alternatives) == (0.0, (), (), ())


def test_a_text_in_capitals_is_translated_in_sentence_case_and_its_translation_is_in_capitals() -> None:
    normalizer = Normalizer(TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=0.0))
    translator = Translator([make()], (TOKENIZER, TOKENIZER), SearchConfig(max_length=12), 40, normalizer=normalizer)
    plain, capitals = translator.translate(["a dog runs", " A DOG  RUNS "], nbest=2, beam=2)
    assert capitals.text == f" {plain.text.upper()} "
    assert capitals.tokens == tuple(token.upper() for token in plain.tokens)
    assert capitals.source_tokens == tuple("A DOG RUNS")
    assert [other.text for other in capitals.alternatives] == [f" {plain.alternatives[0].text.upper()} "]
    assert (capitals.log_prob, capitals.alignment) == (plain.log_prob, plain.alignment)
    assert (plain.normalized, capitals.normalized) == (False, True)
    translator.search = SearchConfig(max_length=12, beam=1)
    assert "".join(translator.stream(" A DOG  RUNS ")) == translator(" A DOG  RUNS ")


def test_the_tokens_of_a_title_are_spelt_as_its_translation() -> None:
    source = Normalizer(TextStyle(0.0, 0.0, 0.0, 1.0))("The Dog Ran Away")
    ids: dict[str, Any] = {"score": 0.0, "log_prob": 0.0, "ids": (3, 4, 5), "alignment": ()}
    result = restored(Translation("ein Hundchen", **ids, tokens=(" ein", " Hund", "chen"), source_tokens=()), source)
    assert result.tokens == (" Ein", " Hund", "chen")
    other = restored(Translation("x", **ids, tokens=("İ",), source_tokens=(" the dog", " ran away")), source)
    assert other.source_tokens == (" The Dog", " Ran Away")


def test_a_text_without_a_stop_is_translated_with_one_and_its_translation_loses_it() -> None:
    tokenizer = Tokenizer.train(["a dog runs."] * 3, "characters", 300)
    style = TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=0.0, stop=".")
    settings = [make(tokenizer=tokenizer)], (tokenizer, tokenizer), SearchConfig(max_length=12, beam=1), 40
    translator = Translator(*settings, normalizer=Normalizer(style))
    stopped, plain = translator.translate(["a dog.", "a dog"])
    assert plain.text == stopped.text.removesuffix(".")
    assert (plain.ids, plain.alignment) == (stopped.ids, stopped.alignment)
    assert "".join(plain.source_tokens) == "a dog"
    assert (stopped.normalized, plain.normalized) == (False, True)
    assert "".join(translator.stream("a dog")) == plain.text


def test_the_tokens_of_a_translation_that_loses_its_stop_are_as_many_as_before() -> None:
    source = Normalizer(TextStyle(0.0, 0.0, 0.0, 1.0, "."))("A DOG")
    ids: dict[str, Any] = {"score": 0.0, "log_prob": 0.0, "ids": (3, 4), "alignment": ()}
    result = restored(
        Translation("Ein Hund.", **ids, tokens=("Ein", " Hund."), source_tokens=("A", " dog", ".")), source
    )
    assert (result.text, result.tokens, result.source_tokens) == ("EIN HUND", ("EIN", " HUND"), ("A", " DOG", ""))


def test_a_misspelt_text_is_translated_as_if_it_were_spelt_correctly() -> None:
    normalizer = Normalizer(TextStyle(0.0, 0.0, 0.0, 0.0), SpellingCorrector(Lexicon.from_texts(TEXTS * 50)))
    settings = [make()], (TOKENIZER, TOKENIZER), SearchConfig(max_length=12), 40
    translator = Translator(*settings, settings=TranslateConfig(correct_spelling=True), normalizer=normalizer)
    plain, misspelt = translator.translate(["the bird sees the dog", "the brid sees the  dog"], nbest=2, beam=2)
    assert misspelt.corrections == (Correction("brid", "bird"),)
    assert (plain.corrections, plain.normalized, misspelt.normalized) == ((), False, True)
    assert (misspelt.text, misspelt.alignment) == (plain.text, plain.alignment)
    assert "".join(misspelt.source_tokens) == "the bird sees the dog"
    assert [other.text for other in misspelt.alternatives] == [other.text for other in plain.alternatives]
    (lines,) = translator.translate(["the brid\na dgo runs"])
    assert [str(correction) for correction in lines.corrections] == ["brid → bird", "dgo → dog"]
    assert "".join(translator.stream("the brid")) == translator.translate(["the bird"], beam=1)[0].text
    translator.settings = TranslateConfig()
    assert translator.translate(["the brid"])[0].corrections == ()


def test_with_a_prefix_the_case_of_a_text_is_kept() -> None:
    normalizer = Normalizer(TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=0.0))
    settings = [make()], (TOKENIZER, TOKENIZER), SearchConfig(max_length=12), 40
    (changed,) = Translator(*settings, normalizer=normalizer).translate(["A DOG RUNS"], prefixes=["THE"])
    (unchanged,) = Translator(*settings).translate(["A DOG RUNS"], prefixes=["THE"])
    texts = Translator(*settings, normalizer=normalizer).translate(["A DOG RUNS"] * 2, prefixes=["", "THE"])
    assert [text.normalized for text in texts] == [True, False]
    assert changed == unchanged


def test_another_thread_may_build_the_models_at_any_moment() -> None:
    models = [make()]
    lazy = LazyModels(lambda: models, backend_of)

    class Raced(Translator):
        """A translator whose models another thread builds after so many reads."""

        reads_left = 0

        @property
        def _models(self) -> Any:
            self.reads_left -= 1
            return lazy if self.reads_left >= 0 else models

        @_models.setter
        def _models(self, _: Any) -> None: ...

    translator = Raced(lazy, (TOKENIZER, TOKENIZER), engine=Engine(backend_of(models)))
    for reads in range(6):
        translator.reads_left = reads
        assert translator.models is models


def test_a_text_is_translated_sentence_by_sentence_and_nothing_is_dropped(translator: Translator) -> None:
    sentences = ["a dog runs.", "the cat sees a bird.", "the old dog and the cat run."]
    translation = translator.translate(["  ".join(sentences) + "\n\na dog\n"])[0]
    pieces = translator.translate([*sentences, "a dog"])
    texts = [piece.text for piece in pieces]
    assert translation.text == "  ".join(texts[:3]) + "\n\n" + texts[3] + "\n"
    assert translation.log_prob == pytest.approx(sum(piece.log_prob for piece in pieces))
    assert translation.tokens == tuple(token for piece in pieces for token in piece.tokens)
    assert all(source < len(translation.source_tokens) for source, _ in translation.alignment)
    assert [target for _, target in translation.alignment] == list(range(len(translation.tokens)))


def test_segments_say_which_part_of_the_translation_belongs_to_which_of_the_text(translator: Translator) -> None:
    text = " a dog runs.  the cat sees a bird.\n\nA dog"
    (translation,) = translator.translate([text])
    sources = [text[slice(*segment.source)] for segment in translation.segments]
    assert sources == ["a dog runs.", "the cat sees a bird.", "A dog"]
    assert [translation.text[slice(*segment.target)] for segment in translation.segments] == translator(sources)


def test_a_line_or_a_whole_text_can_be_translated_without_splitting(translator: Translator) -> None:
    text = "a dog runs. the cat\na dog"
    (by_line,) = translator.translate([text], split="line")
    assert by_line.text == translator.translate(["a dog runs. the cat"], split="none")[0].text + "\n" + translator(
        "a dog"
    )
    (at_once,) = translator.translate([text], split="none")
    assert len(at_once.segments) == 1
    (forced,) = token_log_probs(translator.models, TOKENIZER.encode([text]), [at_once.ids])
    assert sum(forced) == pytest.approx(at_once.log_prob, abs=1e-4)
    with pytest.raises(InputError, match="a text of 60 tokens is longer than this model's limit of 40"):
        translator.translate(["a dog " * 10], split="none")


def test_a_line_as_long_as_training_lines_is_one_piece() -> None:
    trained = SourceLengths(sentences=3, common=40, longest=40)
    translator = Translator([make()], (TOKENIZER, TOKENIZER), splitter=Splitter(40, trained), max_tokens=40)
    (translation,) = translator.translate(["a dog runs.  the cat sees a bird. the old dog and the cat run."])
    assert [segment.source for segment in translation.segments] == [(0, 33), (34, 62)]


def test_sentences_without_a_space_between_them_get_one_where_the_translation_needs_it(
    translator: Translator,
) -> None:
    (translation,) = translator.translate(["犬。猫。"])
    first, second = translator(["犬。", "猫。"])
    assert translation.text == f"{first} {second}"
    assert "".join(translator.stream("犬。猫。")) == whole_greedy(translator, "犬。猫。")


def whole_greedy(translator: Translator, text: str) -> str:
    return translator.translate([text], beam=1)[0].text


def test_a_translation_ended_by_the_length_limit_is_marked_truncated(translator: Translator) -> None:
    (short,) = translator.translate(["a dog\nthe cat"], search=SearchConfig(beam=1, max_length=2))
    assert short.truncated
    assert len(short.segments) == 2
    assert returned(translator.stream("a dog\nthe cat"))


def returned(stream: Generator[str, None, bool]) -> bool:
    """The return value of an exhausted generator."""
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return bool(end.value)


def all_texts(translation: heed.Translation) -> tuple[str, ...]:
    return (translation.text, *(alternative.text for alternative in translation.alternatives))


def test_the_sample_of_a_line_depends_only_on_its_index(translator: Translator) -> None:
    search = SearchConfig(sample=True, nbest=2, max_length=8)
    texts = ["a dog. the cat.", "", "dog", "the cat", "a bird. a dog."]
    expected = [all_texts(translation) for translation in translator.translate(texts, search=search, align=False)]
    for size in (1, 2, 3):
        samples = [
            all_texts(translation)
            for first in range(0, len(texts), size)
            for translation in translator.translate(
                texts[first : first + size], search=search, align=False, first=first
            )
        ]
        assert samples == expected
    assert translator.translate(["dog"], search=search, first=1)[0].text != expected[2][0]


def test_the_score_of_a_translation_equals_forced_decoding(translator: Translator) -> None:
    for translation, source in zip(translator.translate(TEXTS, nbest=3), TEXTS, strict=True):
        if source.strip():
            for hypothesis in (translation, *translation.alternatives):
                (forced,) = token_log_probs(translator.models, TOKENIZER.encode([source]), [hypothesis.ids])
                assert sum(forced) == pytest.approx(hypothesis.log_prob, abs=1e-4)
                assert hypothesis.score == pytest.approx(hypothesis.log_prob / ((5 + len(forced)) / 6) ** 0.6)


def test_score_is_the_log_probability_of_the_text(translator: Translator) -> None:
    sources, targets = ["a dog", "the cat", ""], ["dog", "", "a cat"]
    scores = translator.score(sources, targets)
    for source, target, score in zip(sources, targets, scores, strict=True):
        src, tgt = (TOKENIZER.encode([text])[0] for text in (source, target))
        logits = translator.model(torch.tensor([[*src, 2]]), torch.tensor([[1, *tgt]])).log_softmax(-1)
        expected = sum(logits[0, position, token].item() for position, token in enumerate([*tgt, 2]))
        assert score == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InputError, match="found 3 sources and 2 targets"):
        translator.score(sources, targets[:2])


def test_nbest_translations_come_best_first(translator: Translator) -> None:
    translation = translator.translate(["a dog"], beam=6, nbest=5)[0]
    scores = [translation.score, *(alternative.score for alternative in translation.alternatives)]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert translator.translate(["a dog"])[0].alternatives == ()


def test_a_stream_is_the_greedy_translation(translator: Translator) -> None:
    for text in [*TEXTS, "a dog runs. the cat sees a bird. the old dog and the cat run.\nyes"]:
        greedy = translator.translate([text], beam=1)[0].text
        assert "".join(translator.stream(text)) == greedy


def test_a_stream_comes_token_by_token(translator: Translator) -> None:
    received = 0

    class Counting(Transformer):
        def step(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
            nonlocal received
            received += 1
            return super().step(*arguments, **more)  # type: ignore[arg-type]

    model = Counting(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    stream = Translator([model], (TOKENIZER, TOKENIZER), SearchConfig(max_length=12)).stream("a dog", prefix="the")
    for letter, steps in (("t", 1), ("h", 2), ("e", 3)):
        assert next(stream) == letter
        assert received == steps


def test_alternatives_keep_the_prefix_and_differ_in_the_next_token(translator: Translator) -> None:
    (translation,) = translator.translate(["a dog"], prefixes=["the "])
    assert translation.text.startswith("the ")
    alternatives = translator.alternatives("a dog", "the ", 4)
    assert len({alternative.ids[4] for alternative in alternatives}) == 4
    assert all(alternative.text.startswith("the ") for alternative in alternatives)
    with pytest.raises(InputError, match="found 2 prefixes for 1 texts"):
        translator.translate(["a dog"], prefixes=["a", "b"])
    with pytest.raises(InputError, match=r"a text that is not split \(one line, .*\), found 'a\\nb'"):
        translator.translate(["a\nb"], prefixes=["a"])


def test_a_string_instead_of_a_list_of_texts_is_refused(translator: Translator) -> None:
    with pytest.raises(InputError, match="expected a list of texts, found str: 'a dog'"):
        translator.translate("a dog")


NO_TEXTS = {
    "None": "expected a list of texts, found NoneType: None",
    "3": "expected a list of texts, found int: 3",
    "b'a dog'": "expected a list of texts, found bytes: b'a dog'",
    "{'a': 1}": "expected a list of texts, found dict: {'a': 1}",
    "['a', None]": "expected a text (str) at index 1, found NoneType: None",
    "[b'a']": "expected a text (str) at index 0, found bytes: b'a'",
    "[['a']]": "expected a text (str) at index 0, found list: ['a']",
    "[1.5]": "expected a text (str) at index 0, found float: 1.5",
    "['b\\ud800']": "text 0 has a lone surrogate, '\\ud800' at character 1: it is not Unicode",
}


def test_every_method_refuses_what_is_not_text(tmp_path: Path) -> None:
    """In a subprocess: in this one, signature checks would raise before heed's own checks."""
    code = f"""if True:
        import heed
        from heed.inference.classifier import embed
        translator = heed.load({str(make_folder(tmp_path / "m"))!r})
        takes_texts = [
            translator,
            translator.translate,
            lambda texts: translator.score(texts, texts),
            lambda texts: translator.translate(["a"], prefixes=texts) if texts is not None else translator(texts),
            lambda texts: embed(translator.model, translator.tokenizers[0], texts),
        ]
        for texts, message in {NO_TEXTS!r}.items():
            for taking in takes_texts:
                try:
                    taking(eval(texts))
                except heed.InputError as error:
                    assert str(error) == message, (texts, error)
                else:
                    raise AssertionError(texts)
        for text in (None, 3, b"a", ["a"], "\\ud800"):
            for taking in (translator.look, lambda text: list(translator.stream(text))):
                try:
                    taking(text)
                except heed.InputError:
                    continue
                raise AssertionError(text)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_samples_depend_on_seed_and_index_not_on_the_batch(translator: Translator) -> None:
    drawing = SearchConfig(sample=True, max_length=12, nbest=2)
    single = translator.translate(["a dog"], search=drawing)[0]
    first = translator.translate(["a dog", "the cat sees a bird"], search=drawing)[0]
    assert (single.text, single.alternatives[0].text) == (first.text, first.alternatives[0].text)
    other = translator.translate(["a dog"], search=drawing.model_copy(update={"seed": 2}))[0]
    assert other.text != single.text


def test_an_ensemble_averages_the_probabilities_of_its_models() -> None:
    first, second = make(0), make(1)
    search = SearchConfig(max_length=12)
    single = Translator([first], (TOKENIZER, TOKENIZER), search)
    assert Translator([first, first], (TOKENIZER, TOKENIZER), search)(TEXTS) == single(TEXTS)
    ensemble_score = Translator([first, second], (TOKENIZER, TOKENIZER), search).score(["a dog"], ["cat"])[0]
    source, target = TOKENIZER.encode(["a dog"]), TOKENIZER.encode(["cat"])
    parts = [token_log_probs([model], source, target)[0] for model in (first, second)]
    means = (torch.tensor(parts).exp().mean(0)).log().sum().item()
    assert ensemble_score == pytest.approx(means, abs=1e-4)


def save(folder: Path, tokenizer: Tokenizer, seed: int) -> Path:
    model = make(seed, tokenizer)
    run = RunConfig(
        model=model.config, data=DataConfig(tokenizer=tokenizer.kind), search=SearchConfig(beam=2, max_length=9)
    )
    write_folder(folder, model_files(model.state_dict(), run, {}, (tokenizer, tokenizer), "# card\n"))
    return folder


def test_folders_keep_their_settings_and_an_ensemble_needs_equal_vocabularies(tmp_path: Path) -> None:
    first, second = save(tmp_path / "one", TOKENIZER, 0), save(tmp_path / "other", TOKENIZER, 1)
    translator = heed.load(first, second)
    assert len(translator.models) == 2
    assert (translator.search.beam, translator.search.max_length) == (2, 9)
    strange = save(tmp_path / "strange", Tokenizer.train(["äöü"] * 3, "characters", 300), 0)
    with pytest.raises(InputError, match=f"{first} and {strange} have different vocabularies"):
        heed.load(first, strange)
    with pytest.raises(InputError, match="load needs a model folder, found none"):
        heed.load()


@pytest.mark.parametrize(
    ("source", "target", "alignment", "expected"),
    [
        ([" a", " dog"], [" ein", " Hund"], [(0, 0), (1, 1)], [(0, 0), (1, 1)]),
        ([" a", " do", "g"], [" Hu", "nd"], [(1, 0), (2, 1)], [(1, 0)]),
        (["a", " ", "b"], ["x", " ", "y"], [(2, 0), (1, 1), (0, 2)], [(0, 1), (1, 0)]),
        ([" it", ".", " no"], [" es", "."], [(0, 0), (1, 1)], [(0, 0)]),
        ([], [], [], []),
    ],
)
def test_token_alignment_becomes_word_alignment(
    source: list[str], target: list[str], alignment: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert word_alignment(source, target, alignment) == expected

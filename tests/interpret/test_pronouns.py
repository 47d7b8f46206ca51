from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from heed import ModelConfig, SearchConfig, Transformer, Translator
from heed.errors import DataError, InputError
from heed.interpret.pronouns import (
    OCCLUDED,
    QUERY_WORDS,
    Occluded,
    PronounSentence,
    Rate,
    antecedent_weights,
    disambiguating_examples,
    greedy,
    log_odds,
    measure_pronouns,
    pronoun_sentence,
    untrained,
)
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.microworld.corpus import Example, split_of
from heed.microworld.words import ANIMALS, HINDRANCES
from heed.text.tokenizer import Tokenizer, TokenizerType

EXAMPLES = disambiguating_examples(24, seed=3)
SHAPE = {"d_model": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 16}


@cache
def tokenizer(kind: TokenizerType) -> Tokenizer:
    texts = [text for example in disambiguating_examples(200, seed=3) for text in (example.source, example.target)]
    return Tokenizer.train(texts, kind, 259 if kind == "bytes" else 800)


def text_model(segments: TokenizerType = "words", **settings: Any) -> TextModel:
    torch.manual_seed(0)
    words = tokenizer(segments)
    config = ModelConfig.model_validate({**SHAPE, "vocab_size": words.vocab_size, **settings})
    return TextModel(Transformer(config).eval(), (words, words), SearchConfig(beam=1, max_length_extra=2))


def cases(kind: TokenizerType = "words") -> list[PronounSentence]:
    return [pronoun_sentence(example, tokenizer(kind)) for example in EXAMPLES]


def test_wilson_intervals_equal_those_of_r() -> None:
    """The values of R's binom::binom.wilson(x, n)."""
    for count, total, low, high in (
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (50, 100, 0.4038315, 0.5961685),
    ):
        rate = Rate.counted(count, total)
        assert (rate.found, rate.of, rate.share) == (count, total, count / total)
        assert (rate.low, rate.high) == pytest.approx((low, high), abs=1e-6)


def test_sentences_are_held_out_distinct_balanced_and_of_different_genders() -> None:
    assert len({example.source for example in EXAMPLES}) == 24
    assert {split_of(example) for example in EXAMPLES} == {"test"}
    assert sum(example.antecedent == "subject" for example in EXAMPLES) == 12
    genders = {noun.english: noun.gender for noun in ANIMALS.nouns}
    for hindrance in HINDRANCES:
        genders |= {noun.english: noun.gender for noun in hindrance.objects}
    for example in EXAMPLES:
        subject, goal = genders[example.subject or ""], genders[example.object or ""]
        assert subject != goal
        meant = subject if example.antecedent == "subject" else goal
        assert f"parce qu'{'il' if meant == 'masculine' else 'elle'} " in example.target
    assert disambiguating_examples(24, seed=3) == EXAMPLES
    assert disambiguating_examples(24, seed=4) != EXAMPLES


@pytest.mark.parametrize("kind", ["words", "bpe", "characters", "bytes"])
def test_words_of_any_number_of_tokens_are_located(kind: TokenizerType) -> None:
    for case in cases(kind):
        example = case.example
        nouns = [example.subject, example.object][:: 1 if example.antecedent == "subject" else -1]
        adjective = example.source.rstrip(".").split()[-1]
        for positions, word in zip(
            (case.it, case.antecedent, case.other, case.adjective), ("it", *nouns, adjective), strict=True
        ):
            assert tokenizer(kind).decode([[case.ids[position] for position in positions]])[0].strip() == word


def test_attention_to_nouns_set_by_hand_is_counted() -> None:
    """Every position attends to the subject with head 1 and to the object with head 2."""
    planted = text_model(d_model=8, encoder_layers=1, positions="learned", max_length=32, norm="pre").model
    with torch.no_grad():
        encoder, _ = planted.attention_stacks()
        assert encoder is not None
        attention: Any = encoder.layers[0].attention
        for parameter in (planted.vocabulary.embedding.weight, *encoder.positions.parameters()):
            parameter.zero_()
        for parameter in (*attention.query.parameters(), *attention.key.parameters()):
            parameter.zero_()
        for case in cases():
            for number, noun in enumerate(("subject", "object")):
                positions = case.antecedent if case.example.antecedent == noun else case.other
                planted.vocabulary.embedding.weight[case.ids[positions[0]], number] = 1
        for head in (0, 1):
            attention.query.bias[head * 4] = 3
            attention.key.weight[head * 4, head] = 1
    weights = antecedent_weights(planted, cases())
    assert weights.shape == (24, len(QUERY_WORDS), 1, 2, 2)
    is_subject = np.array([example.antecedent == "subject" for example in EXAMPLES])
    for looker in range(len(QUERY_WORDS)):
        on_antecedent = weights[:, looker, 0, :, 0] > weights[:, looker, 0, :, 1]
        assert on_antecedent.tolist() == np.stack((is_subject, ~is_subject), 1).tolist()
    assert weights[is_subject, :, 0, 0, 0].min() > 0.5


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_batched_counts_and_weights_equal_those_of_single_traces(
    kind: TokenizerType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.interpret.pronouns.greedy", lambda _, sources: [""] * len(sources))
    model = text_model(kind)
    report = measure_pronouns(model, 6, seed=3)
    chosen = [pronoun_sentence(example, tokenizer(kind)) for example in disambiguating_examples(6, seed=3)]
    assert [(finding.looker, finding.layer, finding.head) for finding in report.findings] == [
        (looker, layer, head) for looker in QUERY_WORDS for layer in (1, 2) for head in (1, 2)
    ]
    fresh = TextModel(untrained(model.model, 3), model.tokenizers)
    traces, others = ([traced(of, case) for case in chosen] for of in (model, fresh))
    for finding in report.findings:
        at = finding.layer - 1, finding.head - 1
        noun_means = []
        for rate, looked in ((finding.trained, traces), (finding.untrained, others)):
            rows = [
                trace.encoder_attention[at][list(getattr(case, finding.looker))].mean(0)
                for trace, case in zip(looked, chosen, strict=True)
            ]
            on_nouns = weights_on(rows, chosen, ("antecedent", "other"))
            assert (rate.found, rate.of) == ((on_nouns[:, 0] > on_nouns[:, 1]).sum(), 6)
            noun_means.append(on_nouns.mean(0))
        np.testing.assert_allclose([finding.on_antecedent, finding.on_other], noun_means[0], rtol=1e-4)
    for glance in report.glances:
        rows = [trace.cross_attention[glance.layer - 1, glance.head - 1][-1] for trace in traces]
        names = ("it", "antecedent", "other", "adjective")
        means = weights_on(rows, chosen, names).mean(0)
        np.testing.assert_allclose([getattr(glance, name) for name in names], means, rtol=1e-4)


def traced(of: TextModel, case: PronounSentence) -> Trace:
    """The trace of a sentence and its translation up to the pronoun, so that the last row predicts it."""
    return look(of, case.example.source, case.example.target.split("parce qu'")[0] + "parce qu'")


def weights_on(rows: list[np.ndarray], chosen: list[PronounSentence], names: Sequence[str]) -> np.ndarray:
    return np.array(
        [[row[list(getattr(case, name))].sum() for name in names] for row, case in zip(rows, chosen, strict=True)]
    )


def shortened(case: PronounSentence, removed: Occluded) -> list[int]:
    """The ids without those of the removed word."""
    gone: dict[Occluded, tuple[int, ...]] = {
        "nothing": (),
        "antecedent": case.antecedent,
        "other noun": case.other,
        "adjective": case.adjective,
    }
    return [token for position, token in enumerate(case.ids) if position not in gone[removed]]


def test_occluding_a_word_equals_a_source_without_it() -> None:
    model, (of_source, of_target) = text_model(), (tokenizer("words"), tokenizer("words"))
    chosen, translator = cases()[:2], Translator([model.model], model.tokenizers, model.search)
    for removed in OCCLUDED:
        sources = [case.without(removed, 0) for case in chosen]
        odds = log_odds(model, [case.example for case in chosen], sources)
        texts = greedy(model, sources)
        for case, log_odds_of_case, text in zip(chosen, odds, texts, strict=True):
            (source,) = of_source.decode([shortened(case, removed)])
            assert of_source.encode([source]) == [shortened(case, removed)]
            before, after_conjunction = case.example.target.split("parce qu'")
            pronoun = after_conjunction.split()[0]
            other_pronoun = "elle" if pronoun == "il" else "il"
            position = len(of_target.encode([before + "parce qu'"])[0])
            (il,) = translator.token_scores([source], [f"{before}parce qu'{pronoun}"])
            (elle,) = translator.token_scores([source], [f"{before}parce qu'{other_pronoun}"])
            assert log_odds_of_case == pytest.approx(il[position] - elle[position], abs=1e-5)
            assert text == translator(source)


def test_rates_count_forced_and_written_pronouns(monkeypatch: pytest.MonkeyPatch) -> None:
    model = text_model()
    chosen = disambiguating_examples(6, seed=3)
    sentences = [pronoun_sentence(example, tokenizer("words")) for example in chosen]
    removed = {tuple(case.without(name, 0)): name for case in sentences for name in OCCLUDED}
    forced = dict(zip(OCCLUDED, (6, 1, 5, 3), strict=True))
    written_counts = dict(zip(OCCLUDED, (6, 2, 4, 0), strict=True))

    def planted_odds(_: TextModel, _examples: list[Example], sources: list[list[int]]) -> list[float]:
        count = forced[removed[tuple(sources[0])]]
        return [0.5] * count + [-0.5] * (6 - count)

    def planted_texts(_: TextModel, sources: list[list[int]]) -> list[str]:
        count = written_counts[removed[tuple(sources[0])]]
        return [example.target for example in chosen[:count]] + ["Je ne sais pas."] * (6 - count)

    monkeypatch.setattr("heed.interpret.pronouns.log_odds", planted_odds)
    monkeypatch.setattr("heed.interpret.pronouns.greedy", planted_texts)
    removals = measure_pronouns(model, 6, seed=3).removals
    assert [removal.removed for removal in removals] == list(OCCLUDED)
    assert [(removal.forced.found, removal.written.found) for removal in removals] == [(6, 6), (1, 2), (5, 4), (3, 0)]
    assert {removal.forced.of for removal in removals} == {removal.written.of for removal in removals} == {6}


def test_odd_counts_and_models_that_do_not_translate_are_refused() -> None:
    model = text_model()
    with pytest.raises(DataError, match="expected an even number of sentences, one half per antecedent, found 7"):
        measure_pronouns(model, 7)
    with pytest.raises(DataError, match=r"expected a sentence with 'because it was', found 'A dog runs\.'"):
        pronoun_sentence(Example("A dog runs.", "Un chien court.", "plain"), tokenizer("words"))
    for kind in ("encoder", "decoder"):
        with pytest.raises(InputError, match=f"kind = '{kind}' does not translate"):
            measure_pronouns(text_model(kind=kind))

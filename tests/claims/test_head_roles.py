"""The roles of heads: relations of hand-written sentences, weights of hand-made attention, and verdicts on numbers."""

from pathlib import Path

import pytest
import torch

from heed.claims import head_formation, head_roles
from heed.claims.claim import Context
from heed.claims.head_roles import FIXED, KINDS, OF_UNTRAINED, UNTRAINED
from heed.claims.head_weights import (
    ParsedPair,
    common_weight,
    fixed_distance_shares,
    overlaps,
    parsed_pairs,
    related_weights,
    weights_on_related,
)
from heed.claims.relations import CROSS, GRAMMATICAL, POSITIONAL, PositionPair, Relation, related_tokens, tokens_of
from heed.claims.result import Panel, Series
from heed.config import ModelConfig
from heed.microworld.corpus import Example, corpus
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

# The template of each sentence, its adjectives and verbs with their nouns, its French determiners with English nouns.
SENTENCES = {
    "An owl sees some clean cars.": ("plain", "clean→cars", "sees→owl"),
    "The men don't clean my house.": ("negation", "", "clean→men"),
    "My aunt didn't hear these small white mice.": ("past", "white→mice small→mice", "hear→aunt"),
    "These cars weren't dirty.": ("attribute", "dirty→cars", "weren→cars"),
    "The girl who reads this book is happy.": ("relative-subject", "happy→girl", "reads→girl is→girl"),
    "The books that a girl reads are old.": ("relative-object", "old→books", "reads→girl are→books"),
    "The king's houses were old.": ("possession", "old→houses", "were→houses"),
    "The queen gives a letter to the boys.": ("giving", "", "gives→queen"),
    "The old dog doesn't sleep in front of my house.": ("place", "old→dog", "sleep→dog"),
    "The woman has a red car but she doesn't wash it.": ("object-pronoun", "red→car", "has→woman"),
}
# The French determiners and nouns, each with the English noun.
TRANSLATIONS = {
    ("The old cat sees an ant.", "Le vieux chat voit une fourmi."): "le→cat chat→cat une→ant fourmi→ant",
    ("The uncle sees the hen.", "L'oncle voit la poule."): "l→uncle oncle→uncle la→hen poule→hen",
    ("The boy sees my king.", "Le garçon voit mon roi."): "le→boy garçon→boy mon→king roi→king",
    ("The man sees some old men.", "L'homme voit de vieux hommes."): "l→man homme→man hommes→men",
    ("The man sees the man.", "L'homme voit l'homme."): "",
}


def pronoun_sentence(antecedent: str, adjective: str, french: str) -> Example:
    return Example(
        f"The old red hen didn't enter the tunnel because it was too {adjective}.",
        f"La vieille poule rouge n'est pas entrée dans le tunnel parce qu'{french}.",
        "because",
        "subject" if antecedent == "hen" else "object",
        "hen",
        "tunnel",
    )


def in_words(example: Example, *relations: Relation) -> str:
    """The pairs of some relations as words, such as `old→hen red→hen`."""
    source, target = tokens_of(example.source), tokens_of(example.target)
    pairs = related_tokens(example)
    return " ".join(
        f"{(target if relation in CROSS else source)[query]}→{source[key]}"
        for relation in relations
        for query, key in pairs[relation]
    )


@pytest.mark.parametrize("source", SENTENCES)
def test_adjectives_and_verbs_of_each_template_find_their_noun(source: str) -> None:
    rule, adjectives, verbs = SENTENCES[source]
    example = Example(source, "", rule)
    assert in_words(example, "adjective → noun") == adjectives
    assert in_words(example, "verb → subject") == verbs
    assert in_words(example, "it → antecedent", *CROSS) == ""


@pytest.mark.parametrize(
    ("antecedent", "adjective", "french"),
    [("hen", "sick", "elle était trop malade"), ("tunnel", "dark", "il était trop sombre")],
)
def test_the_antecedent_is_the_one_that_the_adjective_tells(antecedent: str, adjective: str, french: str) -> None:
    example = pronoun_sentence(antecedent, adjective, french)
    assert in_words(example, "it → antecedent") == f"it→{antecedent}"
    assert in_words(example, "il, elle → antecedent") == f"{french.split(maxsplit=1)[0]}→{antecedent}"
    assert in_words(example, "adjective → noun") == f"red→hen old→hen {adjective}→{antecedent}"
    assert in_words(example, "verb → subject") == "enter→hen"


@pytest.mark.parametrize("texts", TRANSLATIONS, ids=lambda texts: texts[0])
def test_determiners_and_nouns_find_the_english_noun(texts: tuple[str, str]) -> None:
    example = Example(*texts, "plain")
    found = in_words(example, "French determiner → English noun", "French noun → English noun").split()
    assert sorted(found) == sorted(TRANSLATIONS[texts].split())


def test_neighbours_are_related_by_position() -> None:
    example = Example("The dog isn't big.", "Le chien n'est pas grand.", "attribute")
    assert in_words(example, "previous token") == "dog→the isn→dog 't→isn big→'t .→big"
    assert in_words(example, "next token") == "the→dog dog→isn isn→'t 't→big big→."


def test_relations_of_generated_sentences_agree_with_the_generator() -> None:
    for example in corpus("valid", 2000):
        source, related = tokens_of(example.source), related_tokens(example)
        assert related["verb → subject"], example.source
        assert related["French noun → English noun"], example.source
        assert bool(related["it → antecedent"]) == bool(related["il, elle → antecedent"]) == (example.rule == "because")
        for _, key in related["it → antecedent"] + related["il, elle → antecedent"]:
            assert source[key] == (example.subject if example.antecedent == "subject" else example.object)
        assert in_words(example, "il, elle → antecedent").partition("→")[0] in ("", "il", "elle")


def test_a_fixed_distance_does_not_explain_most_of_a_grammatical_relation() -> None:
    pairs = [ParsedPair([], [], related_tokens(example)) for example in corpus("valid", 2000)]
    for relation in POSITIONAL:
        assert fixed_distance_shares(pairs, relation, 2) == [1.0, 0.0]
    for relation in GRAMMATICAL:
        shares = fixed_distance_shares(pairs, relation, 100)
        assert shares[0] < 0.6
        assert sum(shares) == pytest.approx(1)


def test_sentences_with_a_word_that_the_vocabulary_lacks_are_left_out(tmp_path: Path) -> None:
    examples = corpus("train", 20)
    texts = [text for example in examples[:10] for text in (example.source, example.target)]
    tokenizer = Tokenizer.train(texts, "words", 8000)
    parsed = parsed_pairs(Context("smallest", tmp_path, lambda _: None), (tokenizer, tokenizer))
    sources = tokenizer.decode([pair.source for pair in parsed])
    assert sources[:10] == [example.source for example in examples[:10]]
    assert 10 <= len(parsed) < 20
    for pair, example in zip(parsed[:10], examples[:10], strict=True):
        assert len(pair.source) == len(tokens_of(example.source))
        assert len(pair.target) == len(tokens_of(example.target))


def related(relation: Relation, *positions: PositionPair) -> dict[Relation, list[PositionPair]]:
    return {**{name: [] for name in (*POSITIONAL, *GRAMMATICAL)}, relation: list(positions)}


def test_hand_made_attention_gives_its_weights_on_related_tokens() -> None:
    # Weights that tell sentence, layer, head, query and key by their digits; no softmax is needed here.
    digits = torch.arange(2)[:, None, None, None] * 1000 + torch.arange(2)[None, :, None, None] * 100
    digits = digits + torch.arange(3)[None, None, :, None] * 10 + torch.arange(3)
    weights = {
        path: digits + 10_000 * number
        for number, path in enumerate(
            ("encoder.1.self", "encoder.2.self", "decoder.1.self", "decoder.1.cross", "decoder.2.self")
        )
    }
    batch = [
        ParsedPair([], [], related("it → antecedent", (2, 1))),
        ParsedPair([], [], {**related("it → antecedent", (0, 2)), "il, elle → antecedent": [(1, 0)]}),
    ]
    found = related_weights(batch, weights)
    assert found["it → antecedent"].tolist() == [[21, 121, 10021, 10121], [1002, 1102, 11002, 11102]]
    assert found["il, elle → antecedent"].tolist() == [[31010, 31110]]
    assert found["next token"].shape == (0, 4)


def test_the_common_weight_of_two_heads() -> None:
    same, other = [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]
    assert common_weight(torch.tensor([[[same], [same]]])).tolist() == [[1.0]]
    assert common_weight(torch.tensor([[[same], [other]]])).tolist() == [[0.5]]
    assert common_weight(torch.tensor([[[same], [same], [other]]])).item() == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_heads_that_attend_uniformly_put_one_nth_on_related_tokens_and_have_all_in_common() -> None:
    config = ModelConfig(vocab_size=50, d_model=8, heads=2, d_ff=8, encoder_layers=2, decoder_layers=1)
    model = Transformer(config).eval()
    for name, weight in model.named_parameters():
        if ".query." in name:
            torch.nn.init.zeros_(weight)
    pairs = [
        ParsedPair([5, 6, 7], [8, 9], related_tokens(Example("The dogs.", "Les chiens.", "plain"))),
        ParsedPair([5, 6, 7, 8, 9], [8], related("il, elle → antecedent", (0, 2))),
    ]
    weights = weights_on_related(model, pairs)
    assert weights["next token"] == pytest.approx([1 / 4] * 4)
    assert weights["il, elle → antecedent"] == pytest.approx([1 / 6] * 2)
    assert overlaps(model, pairs) == pytest.approx(
        dict.fromkeys(("encoder.1.self", "encoder.2.self", "decoder.1.self", "decoder.1.cross"), 1.0)
    )


def role_panels(best: float, in_common: float) -> list[Panel]:
    """Panels of three seeds: all relations have this weight; untrained heads have 0.8 in common."""
    weights: dict[str, float] = {UNTRAINED: 0.1, FIXED: 0.5}
    for relation in GRAMMATICAL:
        weights[relation] = best
    overlap = {kind + suffix: value for kind in KINDS for suffix, value in (("", in_common), (OF_UNTRAINED, 0.8))}
    return [
        Panel("", "", [Series(name, [1.0, 2.0], [[value] * 3] * 2) for name, value in values.items()])
        for values in (weights, overlap, {})
    ]


def test_roles_need_heads_that_differ_and_weights_that_no_baseline_explains() -> None:
    verdict, finding = head_roles.judge(role_panels(best=0.9, in_common=0.3))
    assert verdict == "holds"
    assert "encoder 30% (80%)" in finding
    assert "French noun → English noun 90%" in finding
    assert "fixed distance, largest of all 50%" in finding
    assert head_roles.judge(role_panels(best=0.4, in_common=0.3))[0] == "holds in part"
    assert head_roles.judge(role_panels(best=0.9, in_common=0.8))[0] == "holds in part"
    assert head_roles.judge(role_panels(best=0.4, in_common=0.8))[0] == "does not hold here"


def formation_panels(*finals: float) -> list[Panel]:
    """Relations with these weights after 20 steps."""
    series = [Series(f"relation {final}", [0.0, 10.0, 20.0], [[0.1], [final - 0.1], [final]]) for final in finals]
    return [Panel("", "", series), Panel("", "", [])]


def test_a_role_has_formed_if_it_is_there_at_the_end_and_was_not_at_the_start() -> None:
    verdict, finding = head_formation.judge(formation_panels(0.9, 0.55))
    assert verdict == "holds"
    assert "relation 0.9 10% and 90% (over 50% from step 10)" in finding
    assert "relation 0.55 10% and 55% (over 50% from step 20)" in finding
    assert head_formation.judge(formation_panels(0.9, 0.2))[0] == "holds in part"
    assert head_formation.judge(formation_panels(0.4, 0.2))[0] == "does not hold here"
    there_from_the_start = [Panel("", "", [Series("a", [0.0, 1.0], [[0.9], [0.9]])]), Panel("", "", [])]
    assert head_formation.judge(there_from_the_start)[0] == "does not hold here"

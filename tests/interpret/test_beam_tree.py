from collections import Counter
from random import Random

import pytest
import torch

from heed.decoding.search import beam_search
from heed.errors import InputError
from heed.interpret.beam_tree import BeamTree, beam_tree
from heed.search_config import SearchConfig
from tests.decoding.small_models import small_model
from tests.decoding.tables import EOS, FIRST, Tables
from tests.reference.backends import start_search


def tree_of(tables: Tables, longest: int, config: SearchConfig) -> BeamTree:
    return beam_tree(tables.start([0]), longest, config, str)


def settings(random: Random) -> SearchConfig:
    beam = random.randint(1, 5)
    return SearchConfig(
        beam=beam,
        nbest=random.randint(1, beam),
        length_penalty=random.choice([0.0, 0.6, 1.5, -0.5]),
        stop=random.choice(["exact", "first"]),
        min_length=random.choice([0, 0, 2]),
        no_repeat_ngram=random.choice([None, None, 2]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_tree_equals_beam_search(seed: int) -> None:
    random = Random(seed)
    config, longest = settings(random), random.randint(2, 6)
    tables = Tables(seed, random.randint(3, 8), steps=seed % 3 == 0, eos_bonus=random.choice([0.0, 2.0, -3.0]))
    tree = tree_of(tables, longest, config)
    assert tree.results() == beam_search(tables.start([0]), [longest], config)[0]
    assert_consistent(tree, config)


def assert_consistent(tree: BeamTree, config: SearchConfig) -> None:
    children = Counter(node.parent for node in tree.nodes)
    ranks: dict[int, list[float]] = {}
    for index, node in enumerate(tree.nodes):
        assert (node.fate == "went on") == (children[index] > 0)
        assert (node.score is not None) == (node.fate in ("ended", "greatest length"))
        if node.parent is None:
            assert index == 0
            continue
        parent = tree.nodes[node.parent]
        assert node.parent < index
        assert node.step == parent.step + 1 == len(tree.written(index))
        assert node.total == parent.total + node.log_prob
        ranks.setdefault(node.step, []).append(node.total)
        assert node.rank == len(ranks[node.step])
        if node.score is not None:
            assert node.id == EOS
            assert node.rank <= config.beam
    assert all(totals == sorted(totals, reverse=True) for totals in ranks.values())


def test_the_tree_of_a_transformer_equals_its_beam_search(device: torch.device) -> None:
    model, sources = small_model(3, device)
    config = SearchConfig(beam=3, nbest=3)
    for source in sources:
        start = start_search([model], [source])
        tree = beam_tree(start, 8, config, str)
        (results,) = beam_search(start, [8], config)
        assert [result.ids for result in tree.results()] == [result.ids for result in results]
        assert [result.score for result in tree.results()] == pytest.approx([result.score for result in results])


class SmallTable(Tables):
    """A model of the tokens 2, 3 and EOS with log-probabilities given by a table."""

    def log_probs(self, sentence: int, words: tuple[int, ...]) -> list[float]:  # noqa: ARG002
        log_probs_by_prefix = {(): (-9.0, -0.5, -1.0), (2,): (-0.1, -5.0, -5.0), (3,): (-3.0, -2.0, -2.5)}
        return [-float("inf"), *log_probs_by_prefix.get(words, (-1.0, -4.0, -4.0))]


def test_every_branch_says_why_it_ended() -> None:
    tree = tree_of(SmallTable(0, 4), 5, SearchConfig(beam=2, length_penalty=0.0))
    fates = {tree.written(index): node.fate for index, node in enumerate(tree.nodes)}
    assert fates[()] == fates[2,] == fates[3,] == "went on"
    assert fates[EOS,] == "fell out of the beam"
    assert fates[2, EOS] == "ended"
    assert fates[3, 2] == fates[3, 3] == "could not win any more"
    assert fates[3, EOS] == "fell out of the beam"
    best = next(node for index, node in enumerate(tree.nodes) if tree.written(index) == (2, EOS))
    assert (best.token, best.step, best.rank, best.place) == (str(EOS), 2, 1, 1)
    assert [best.total, best.score] == pytest.approx([-0.6, -0.6])
    assert tree.nodes[0].token == str(FIRST)
    first = tree_of(SmallTable(0, 4), 5, SearchConfig(beam=2, length_penalty=0.0, stop="first"))
    assert {node.fate for node in first.nodes if node.step == 2} == {
        "ended",
        "enough had ended",
        "fell out of the beam",
    }
    short = tree_of(SmallTable(0, 4), 1, SearchConfig(beam=2, length_penalty=0.0))
    # Both end at the length limit; the first predicts EOS anyway.
    assert [node.fate for node in short.nodes if node.step == 2] == ["ended", "greatest length"]


def test_sampling_and_batches_have_no_beam_tree() -> None:
    with pytest.raises(InputError, match=r"search\.sample = true samples tokens"):
        tree_of(SmallTable(0, 4), 5, SearchConfig(sample=True))
    with pytest.raises(InputError, match="a beam tree is of one sentence, found 2"):
        beam_tree(SmallTable(0, 4).start([0, 1]), 5, SearchConfig(), str)
    with pytest.raises(InputError, match=r"sentence 0 has log-probability -inf: .* no_repeat_ngram = 1"):
        tree_of(Tables(0, 2), 4, SearchConfig(no_repeat_ngram=1, min_length=3))

"""Beam search as a tree: every candidate, its score, and why its branch ended.

Enters: a `Start`, as for any search, for one sentence. Leaves: a `BeamTree` whose results are those of `beam_search`.
`beam_search` works on batches of tensors and drops what loses; this is the same search on lists, written plainly, and
keeps everything. Tests prove that they agree. Knows neither text nor Transformers.

At each step the tree holds the top 2·W expansions: the W that stay in the beam are among them, since at most W of those
ranked before them can finish.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import torch

from heed.backends.base import Hypothesis, S, Start, length_penalty
from heed.backends.torch.search_ops import topk
from heed.config import SearchConfig
from heed.decoding.search import Constraints
from heed.errors import InputError
from heed.model.torch_state import torch_defaults

Fate = Literal[
    "went on",  # it stayed in the beam, and its expansions are in the tree
    "ended",  # with eos, among the top W: finished, with a score
    "greatest length",  # finished by the length limit: the model would have gone on
    "fell out of the beam",  # others ranked higher
    "could not win any more",  # the search stopped: no expansion of it could beat the finished ones
    "enough had ended",  # the search stopped since stop = 'first', or the beam is 1
]


@dataclass(frozen=True)
class Node:
    """One token of one hypothesis, which is the path from the root to it."""

    parent: int | None  # its index in the list of nodes; none for the root
    step: int  # the length of the hypothesis, this token included; 0 for the root
    id: int
    token: str
    log_prob: float  # of this token after those before it
    total: float  # of all tokens so far
    rank: int  # by `total` among all expansions of its step, from 1
    fate: Fate
    score: float | None = None  # of a finished one: total / length penalty
    place: int | None = None  # rank among the search's results, from 1; none: it is no result


@dataclass(frozen=True)
class BeamTree:
    """The nodes, each after its parent; the first is the root."""

    nodes: tuple[Node, ...]

    def written(self, place: int) -> tuple[int, ...]:
        """The hypothesis that ends at this node."""
        tokens: list[int] = []
        node = self.nodes[place]
        while node.parent is not None:
            tokens.append(node.id)
            node = self.nodes[node.parent]
        return tuple(reversed(tokens))

    def results(self) -> list[Hypothesis]:
        """The results of the search, best first."""
        found = [(node.place, number) for number, node in enumerate(self.nodes) if node.place is not None]
        return [
            Hypothesis(self.written(number)[:-1], node.total, node.score or 0.0, node.fate == "greatest length")
            for _, number in sorted(found)
            for node in [self.nodes[number]]
        ]


@torch_defaults()
@torch.no_grad()
def beam_tree(start: Start[S], longest: int, config: SearchConfig, show: Callable[[int], str]) -> BeamTree:
    """The search for a translation of at most `longest` tokens; show: a token id as text."""
    if config.sample:
        raise InputError("search.sample = true draws tokens at random: there is no beam to show")
    if len(start.first) != 1:
        raise InputError(f"a beam is shown for one sentence, found {len(start.first)}")
    constraints, state, root = Constraints.of(start, [longest], config, None), start.state, int(start.first[0])
    search = _Search(config, start.eos_id, longest, show, [Node(None, 0, root, show(root), 0.0, 0.0, 1, "went on")])
    live, why_over = [0], None
    while why_over is None:
        log_probs, state = start.step(start.first.new_tensor([search.nodes[at].id for at in live]), state)
        written = start.first.new_tensor([search.tree().written(at) for at in live])
        (allowed,), cut_off = constraints.apply(log_probs.float()[None], written[None])
        values, ids = topk(allowed, config.beam + 1)
        search.cut_off = (
            set() if cut_off is None else {at for at, cut in zip(live, cut_off[0].tolist(), strict=True) if cut}
        )
        before, live = live, search.grow(live, values.tolist(), ids.tolist())
        why_over = search.over(live)
        if why_over is None:
            rows = [before.index(parent) for at in live if (parent := search.nodes[at].parent) is not None]
            state = state.select(start.first.new_tensor([rows]))
    for at in live:
        search.settle(at, why_over)
    results = search.best_ended()
    constraints.check(0, results[0][1] if results else -inf)
    for place, (at, _, _) in enumerate(results, 1):
        search.nodes[at] = replace(search.nodes[at], place=place)
    return search.tree()


@dataclass
class _Search:
    """The tree during the search."""

    config: SearchConfig
    eos_id: int
    longest: int
    show: Callable[[int], str]
    nodes: list[Node]
    cut_off: set[int] = field(default_factory=set)  # live nodes that the length limit ends, and not the model

    def tree(self) -> BeamTree:
        """The tree as it is now."""
        return BeamTree(tuple(self.nodes))

    def grow(self, live: list[int], values: list[list[float]], ids: list[list[int]]) -> list[int]:
        """One beam step: add the top expansions of the live nodes, and return the nodes that stay in the beam."""
        width, step = self.config.beam, self.nodes[live[0]].step + 1
        thought_of = [
            (self.nodes[parent].total + log_prob, log_prob, token, parent)
            for parent, of_parent, tokens in zip(live, values, ids, strict=True)
            for log_prob, token in zip(of_parent, tokens, strict=True)
            if log_prob > -inf
        ]
        best = sorted(thought_of, key=lambda each: -each[0])[: 2 * width]  # a stable sort: ties keep their order
        living: list[int] = []
        for rank, (total, log_prob, token, parent) in enumerate(best, 1):
            fate, score = self._fate(token, rank, parent, len(living)), None
            if fate == "went on":
                living.append(len(self.nodes))
            elif fate != "fell out of the beam":
                score = total / length_penalty(step, self.config.length_penalty)
            self.nodes.append(Node(parent, step, token, self.show(token), log_prob, total, rank, fate, score))
        continued = {parent for *_, parent in best}
        for parent in live:
            if parent not in continued:
                self.settle(parent, "fell out of the beam")
        return living

    def _fate(self, token: int, rank: int, parent: int, living: int) -> Fate:
        if token == self.eos_id:
            ended: Fate = "greatest length" if parent in self.cut_off else "ended"
            return ended if rank <= self.config.beam else "fell out of the beam"
        return "went on" if living < self.config.beam else "fell out of the beam"

    def over(self, living: list[int]) -> Fate | None:
        """Why the search stops here, if it does."""
        config, results = self.config, self.best_ended()
        worst = results[-1][2] if len(results) == config.nbest else -inf
        if config.stop == "first" or config.beam == 1:
            return "enough had ended" if worst > -inf or not living else None
        step = self.nodes[-1].step
        penalties = (length_penalty(length + 1, config.length_penalty) for length in (step, self.longest))
        bound = max((self.nodes[at].total for at in living), default=-inf) / max(penalties)
        return None if bound > worst else "could not win any more"

    def best_ended(self) -> list[tuple[int, float, float]]:
        """The nbest best finished nodes: index in the list of nodes, log-probability, score."""
        ended = [(at, node.total, node.score) for at, node in enumerate(self.nodes) if node.score is not None]
        return sorted(ended, key=lambda each: -each[2])[: self.config.nbest]

    def settle(self, at: int, fate: Fate) -> None:
        """Record what became of a node."""
        self.nodes[at] = replace(self.nodes[at], fate=fate)

"""Beam search as a tree: every candidate, its score, and why its branch ended.

Enters: a `Start`, as for any search, for one sentence. Leaves: a `BeamTree` whose results are those of `beam_search`.
`beam_search` works on batches of tensors and drops losing hypotheses; this is the same search on lists, and keeps them
all. Tests prove that the two agree. Knows neither text nor Transformers.

At each step the tree holds the top 2·W expansions: the W that stay in the beam are among them, since at most W of those
ranked before them can finish.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import torch

from heed.backends.base import S, Start
from heed.backends.protocol import Hypothesis, length_penalty
from heed.backends.torch.search_ops import topk
from heed.decoding.search import Constraints
from heed.errors import InputError
from heed.model.torch_state import torch_defaults
from heed.search_config import SearchConfig

Outcome = Literal[  # also the values in saved traces
    "went on",  # it stayed in the beam, and its expansions are in the tree
    "ended",  # with eos, among the top W: finished, with a score
    "greatest length",  # finished by the length limit, not by the model
    "fell out of the beam",  # others ranked higher
    "could not win any more",  # the search stopped: no expansion of it could beat the finished ones
    "enough had ended",  # the search stopped since stop = 'first', or the beam is 1
]


@dataclass(frozen=True)
class Node:
    """One token of one hypothesis; the hypothesis is the path from the root."""

    parent: int | None  # its index in the list of nodes; none for the root
    step: int  # the length of the hypothesis, this token included; 0 for the root
    id: int
    token: str
    log_prob: float  # of this token, given those before it
    total: float  # of all tokens so far
    rank: int  # by `total` among all expansions of its step, from 1
    fate: Outcome  # `fate` is its key in saved traces
    score: float | None = None  # of a finished hypothesis: total / length penalty
    place: int | None = None  # rank among the results, from 1; none: not a result


@dataclass(frozen=True)
class BeamTree:
    """The nodes, each after its parent; the first is the root."""

    nodes: tuple[Node, ...]

    def written(self, index: int) -> tuple[int, ...]:
        """The hypothesis that ends at this node."""
        tokens: list[int] = []
        node = self.nodes[index]
        while node.parent is not None:
            tokens.append(node.id)
            node = self.nodes[node.parent]
        return tuple(reversed(tokens))

    def results(self) -> list[Hypothesis]:
        """The results of the search, best first."""
        ranked = sorted((node.place, index) for index, node in enumerate(self.nodes) if node.place is not None)
        return [
            Hypothesis(self.written(index)[:-1], node.total, node.score or 0.0, node.fate == "greatest length")
            for _, index in ranked
            for node in [self.nodes[index]]
        ]


@torch_defaults()
@torch.no_grad()
def beam_tree(start: Start[S], max_length: int, config: SearchConfig, show: Callable[[int], str]) -> BeamTree:
    """The search for a translation of at most `max_length` tokens; show: a token id as text."""
    if config.sample:
        raise InputError("search.sample = true samples tokens: there is no beam to show")
    if len(start.first) != 1:
        raise InputError(f"a beam tree is of one sentence, found {len(start.first)}")
    constraints, state, root = Constraints.of(start, [max_length], config, None), start.state, int(start.first[0])
    search = _Search(config, start.eos_id, max_length, show, [Node(None, 0, root, show(root), 0.0, 0.0, 1, "went on")])
    live, stop_reason = [0], None
    while stop_reason is None:
        log_probs, state = start.step(start.first.new_tensor([search.nodes[node].id for node in live]), state)
        written = start.first.new_tensor([search.tree().written(node) for node in live])
        (allowed,), truncated = constraints.apply(log_probs.float()[None], written[None])
        values, ids = topk(allowed, config.beam + 1)
        search.truncated = (
            set()
            if truncated is None
            else {node for node, is_truncated in zip(live, truncated[0].tolist(), strict=True) if is_truncated}
        )
        parents, live = live, search.beam_step(live, values.tolist(), ids.tolist())
        stop_reason = search.stop_reason(live)
        if stop_reason is None:
            rows = [parents.index(parent) for node in live if (parent := search.nodes[node].parent) is not None]
            state = state.select(start.first.new_tensor([rows]))
    for node in live:
        search.set_outcome(node, stop_reason)
    results = search.best_finished()
    constraints.check(0, results[0][1] if results else -inf)
    for place, (node, _, _) in enumerate(results, 1):
        search.nodes[node] = replace(search.nodes[node], place=place)
    return search.tree()


@dataclass
class _Search:
    """The beam tree while the search adds nodes to it."""

    config: SearchConfig
    eos_id: int
    max_length: int
    show: Callable[[int], str]
    nodes: list[Node]
    truncated: set[int] = field(default_factory=set)  # live nodes that the length limit ends, not the model

    def tree(self) -> BeamTree:
        return BeamTree(tuple(self.nodes))

    def beam_step(self, live: list[int], values: list[list[float]], ids: list[list[int]]) -> list[int]:
        """Add the top expansions of the live nodes, and return the nodes that stay in the beam."""
        width, step = self.config.beam, self.nodes[live[0]].step + 1
        expansions = [
            (self.nodes[parent].total + log_prob, log_prob, token, parent)
            for parent, log_probs, tokens in zip(live, values, ids, strict=True)
            for log_prob, token in zip(log_probs, tokens, strict=True)
            if log_prob > -inf
        ]
        ranked = sorted(expansions, key=lambda expansion: -expansion[0])  # a stable sort: ties keep their order
        best = ranked[: 2 * width]
        staying: list[int] = []
        for rank, (total, log_prob, token, parent) in enumerate(best, 1):
            outcome, score = self._outcome(token, rank, parent, len(staying)), None
            if outcome == "went on":
                staying.append(len(self.nodes))
            elif outcome != "fell out of the beam":
                score = total / length_penalty(step, self.config.length_penalty)
            self.nodes.append(Node(parent, step, token, self.show(token), log_prob, total, rank, outcome, score))
        continued = {parent for *_, parent in best}
        for parent in live:
            if parent not in continued:
                self.set_outcome(parent, "fell out of the beam")
        return staying

    def _outcome(self, token: int, rank: int, parent: int, staying: int) -> Outcome:
        if token == self.eos_id:
            ended: Outcome = "greatest length" if parent in self.truncated else "ended"
            return ended if rank <= self.config.beam else "fell out of the beam"
        return "went on" if staying < self.config.beam else "fell out of the beam"

    def stop_reason(self, live: list[int]) -> Outcome | None:
        """Why the search stops after this step; none: it does not."""
        config, results = self.config, self.best_finished()
        worst = results[-1][2] if len(results) == config.nbest else -inf
        if config.stop == "first" or config.beam == 1:
            return "enough had ended" if worst > -inf or not live else None
        step = self.nodes[-1].step
        penalties = (length_penalty(length + 1, config.length_penalty) for length in (step, self.max_length))
        bound = max((self.nodes[node].total for node in live), default=-inf) / max(penalties)
        return None if bound > worst else "could not win any more"

    def best_finished(self) -> list[tuple[int, float, float]]:
        """The nbest best finished nodes: index in the list of nodes, log-probability, score."""
        finished = [(index, node.total, node.score) for index, node in enumerate(self.nodes) if node.score is not None]
        return sorted(finished, key=lambda node: -node[2])[: self.config.nbest]

    def set_outcome(self, index: int, outcome: Outcome) -> None:
        self.nodes[index] = replace(self.nodes[index], fate=outcome)

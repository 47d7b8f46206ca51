"""The roles of heads: whether they learn different tasks, and tasks that have to do with grammar (paper, section 4).

Measured on sentences of the built-in corpus, whose grammar is known: how much weight heads put on the token that is
related to theirs, how much weight two heads of a layer have in common, and how far heads attend. Baselines are models
of the same shape with random weights, and heads that attend to one fixed distance, whatever the tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from heed.claims.claim import Context
from heed.claims.head_weights import ParsedPair, fixed_distance_shares, overlaps, parsed_pairs, weights_on_related
from heed.claims.relations import GRAMMATICAL
from heed.claims.result import Panel, Series, Verdict, is_less
from heed.claims.translation import train_variants
from heed.inference.open import open_folder
from heed.interpret.head_statistics import batches, head_statistics
from heed.interpret.pronouns import untrained
from heed.model.transformer import Transformer

KINDS = ("encoder", "decoder", "cross-attention")
OF_UNTRAINED = ", untrained"
UNTRAINED, FIXED = "untrained, largest of all", "fixed distance, largest of all"


@dataclass(frozen=True)
class HeadMeasures:
    """What was measured of the heads of one model; by kind of attention, or by relation."""

    distances: dict[str, list[list[float]]]  # of each layer's heads
    overlaps: dict[str, list[float]]  # of each layer
    weights: dict[str, list[float]]  # of each head, largest first


def measure(context: Context) -> list[Panel]:
    """The weights on related tokens, by head; what two heads have in common and how far they attend, by layer."""
    (variant,) = train_variants(context, {"Transformer": {}}).values()
    trained, random, fixed = [], [], []
    for seed, folder in zip(context.seeds, variant.folders, strict=True):
        content, model = open_folder(folder)
        pairs = parsed_pairs(context, content.tokenizers)
        trained.append(_head_measures(model, pairs))
        random.append(_head_measures(untrained(model, seed), pairs))
        heads = model.config.encoder_layers * model.config.heads
        fixed.append(_largest([fixed_distance_shares(pairs, relation, heads) for relation in GRAMMATICAL]))
    return [_weight_panel(trained, random, fixed), _overlap_panel(trained, random), _distance_panel(trained, random)]


def _head_measures(model: Transformer, pairs: Sequence[ParsedPair]) -> HeadMeasures:
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    by_path: dict[str, list[float]] = defaultdict(list)
    for head in head_statistics(model, batches(model, sources, targets)):
        if head.distance is not None:
            by_path[head.path].append(head.distance)
    distances: dict[str, list[list[float]]] = defaultdict(list)
    for path, of_heads in by_path.items():
        distances[_kind(path)].append(of_heads)
    common: dict[str, list[float]] = defaultdict(list)
    for path, overlap in overlaps(model, pairs).items():
        common[_kind(path)].append(overlap)
    weights = weights_on_related(model, pairs)
    return HeadMeasures(distances, common, {name: sorted(weights[name], reverse=True) for name in GRAMMATICAL})


def _kind(path: str) -> str:
    return "cross-attention" if path.endswith("cross") else path.partition(".")[0]


def _weight_panel(
    trained: Sequence[HeadMeasures], random: Sequence[HeadMeasures], fixed: Sequence[list[float]]
) -> Panel:
    series = [_numbered(name, [model.weights[name] for model in trained]) for name in GRAMMATICAL]
    of_random = [_largest(list(model.weights.values())) for model in random]
    baselines = [_numbered(UNTRAINED, of_random), _numbered(FIXED, fixed)]
    return Panel("heads, best first", "weight on the related token", [*series, *baselines])


def _overlap_panel(trained: Sequence[HeadMeasures], random: Sequence[HeadMeasures]) -> Panel:
    series = [
        _numbered(f"{kind}{words}", [model.overlaps[kind] for model in models])
        for kind in KINDS
        for words, models in (("", trained), (OF_UNTRAINED, random))
    ]
    return Panel("layer", "weight that two heads have in common", series)


def _distance_panel(trained: Sequence[HeadMeasures], random: Sequence[HeadMeasures]) -> Panel:
    chosen: tuple[tuple[str, Sequence[HeadMeasures], Callable[[list[float]], float]], ...] = (
        ("nearest head", trained, min),
        ("farthest head", trained, max),
        ("untrained, mean head", random, fmean),
    )
    series = [
        _numbered(f"{kind}, {name}", [list(map(choose, model.distances[kind])) for model in models])
        for kind in KINDS[:2]
        for name, models, choose in chosen
    ]
    return Panel("layer", "mean distance of the attended tokens", series)


def _largest(of_relations: Sequence[Sequence[float]]) -> list[float]:
    """The largest value of all relations: of the best head, of the second best, and so on."""
    return [max(values) for values in zip(*of_relations, strict=True)]


def _numbered(name: str, of_models: Sequence[Sequence[float]]) -> Series:
    """The values of each model, numbered from 1."""
    return Series.of_runs(name, range(1, len(of_models[0]) + 1), of_models)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether heads differ more than untrained ones, and most relations have a head that no baseline explains."""
    weight, overlap, _ = panels
    both = {kind: (overlap.named(kind), overlap.named(f"{kind}{OF_UNTRAINED}")) for kind in KINDS}
    differ = all(
        is_less(trained.values_at(layer), random.values_at(layer))
        for trained, random in both.values()
        for layer in trained.x
    )
    best = {series.name: series.values_at(1.0) for series in weight.series}
    found = [name for name in GRAMMATICAL if all(is_less(best[other], best[name]) for other in (UNTRAINED, FIXED))]
    shares = ", ".join(f"{kind} {fmean(a.means()):.0%} ({fmean(b.means()):.0%})" for kind, (a, b) in both.items())
    weights = ", ".join(f"{name} {fmean(values):.0%}" for name, values in best.items())
    finding = (
        f"Weight that two heads of a layer have in common, in brackets untrained: {shares}. "
        f"Weight of the best head on the related token: {weights}."
    )
    if differ and 2 * len(found) > len(GRAMMATICAL):
        return "holds", finding
    return ("holds in part" if differ or found else "does not hold here"), finding

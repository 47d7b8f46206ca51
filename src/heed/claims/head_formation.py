"""How heads get their roles: the weight that they put on related tokens during training.

Measured at checkpoints, and at step 0 with random weights: for each relation of the built-in corpus the weight of the
head that puts most on the related token, beside the validation loss. Which head that is may change.
"""

from pathlib import Path

from heed.artifacts.checkpoint import checkpoint_path
from heed.claims.claim import Context
from heed.claims.head_weights import parsed_pairs, weights_on_related
from heed.claims.relations import GRAMMATICAL, POSITIONAL, Relation
from heed.claims.result import Panel, Series, Verdict
from heed.claims.translation import LOSS, SIZES, curves, train_variants
from heed.inference.open import open_folder
from heed.interpret.head_statistics import DOMINANT_WEIGHT
from heed.interpret.pronouns import untrained

RELATIONS: tuple[Relation, ...] = (*POSITIONAL, *GRAMMATICAL)


def measure(context: Context) -> list[Panel]:
    """The weight of the best head on the related token, and the validation loss, by training steps."""
    size = SIZES[context.scale]
    every = max(1, size.steps // size.validations // 2)  # a checkpoint at each validation, and one between two
    steps = range(every, size.steps + 1, every)
    kept = {"training.checkpoint_every": every, "training.keep_last": len(steps)}
    trained = train_variants(context, {"Transformer": kept})
    runs = [
        _best_weights(context, folder, seed, steps)
        for folder, seed in zip(trained["Transformer"].folders, context.seeds, strict=True)
    ]
    x = [0.0, *(float(step) for step in steps)]
    series = [
        Series(name, x, [[best[name] for best in at_step] for at_step in zip(*runs, strict=True)]) for name in RELATIONS
    ]
    return [Panel("training steps", "weight of the best head on the related token", series), curves(trained, LOSS)]


def _best_weights(context: Context, run: Path, seed: int, steps: range) -> list[dict[Relation, float]]:
    """The largest weight of a head by relation, with random weights and after each of the steps."""
    content, model = open_folder(run)
    pairs = parsed_pairs(context, content.tokenizers)
    models = (untrained(model, seed), *(open_folder(checkpoint_path(run, step))[1] for step in steps))
    weights = (weights_on_related(model, pairs) for model in models)
    return [{relation: max(of_heads) for relation, of_heads in at_step.items()} for at_step in weights]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether at the end of training heads put most of their weight on related tokens, and at the start they do not."""
    panel = panels[0]
    start, end = panel.series[0].x[0], panel.series[0].x[-1]
    described, formed = [], 0
    for series in panel.series:
        words = f"{series.name} {series.at(start):.0%} and {series.at(end):.0%}"
        if series.at(start) < DOMINANT_WEIGHT <= series.at(end):
            since = next(
                step for step, weight in zip(series.x, series.means(), strict=True) if weight >= DOMINANT_WEIGHT
            )
            words += f" (over {DOMINANT_WEIGHT:.0%} from step {since:,.0f})"
            formed += 1
        described.append(words)
    finding = f"Weight of the best head at the start and after {end:,.0f} steps: {', '.join(described)}."
    if formed == len(panel.series):
        return "holds", finding
    return ("holds in part" if formed else "does not hold here"), finding

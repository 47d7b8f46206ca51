"""`heed score`: log-probabilities that a model gives to existing translations, one per line, and their perplexity."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.options import Together, open_translator
from heed.text.corpus import Corpus, read_pairs


def score(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[str, typer.Option(help="The translations to score: line n translates line n of the source.")],
    together: Together = [],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="One JSON object per line, with each token's log-probability.")
    ] = False,
) -> None:
    """Print the log-probability of each translation, end-of-sentence included: one number per line."""
    pairs = list(read_pairs(Corpus(source, target)))
    translator = open_translator(model, together, {})
    total, count = 0.0, 0
    for start in range(0, len(pairs), 1000):
        piece = pairs[start : start + 1000]
        targets = [pair.target for pair in piece]
        found = translator.token_scores([pair.source for pair in piece], targets)
        names = translator.tokenizers[1]
        for ids, scores in zip(names.encode(targets), found, strict=True):
            total, count = total + sum(scores), count + len(scores)
            if tokens:
                shown = {"log_prob": sum(scores), "tokens": [*names.tokens(ids), "⏎"], "log_probs": scores}
                typer.echo(json.dumps(shown, ensure_ascii=False))
            else:
                typer.echo(f"{sum(scores):.6f}")
    if count:
        perplexity = math.exp(-total / count)
        typer.echo(
            f"{len(pairs):,} sentences, {count:,} tokens: {total / count:.4f} a token, perplexity {perplexity:.3f}",
            err=True,
        )

"""How near a language model of the built-in world's French comes to what its sentences need at least.

    python docs/pictures/entropy.py RUN VALID

RUN: its folder (recipes/halves.sh trains it); VALID: the sentences it was validated on. Writes entropy.svg beside this.
"""

import sys
from pathlib import Path

import numpy as np

from heed.microworld.entropy import log_probability
from heed.plots.chart import curve
from heed.text.corpus import read_lines
from heed.text.tokenizer import Tokenizer
from heed.training.step_log import read_journal


def main() -> None:
    """Draw it, and say the numbers."""
    run, valid = Path(sys.argv[1]), list(read_lines(sys.argv[2]))
    tokens = sum(len(ids) + 1 for ids in Tokenizer.load(run / "tokenizer.json", "bpe").encode(valid))
    tried = [entry for entry in read_journal(run / "journal.jsonl") if "validation_loss" in entry]
    steps = np.array([entry["step"] for entry in tried], dtype=float)
    needed = np.array([entry["validation_loss"] for entry in tried]) * tokens / len(valid)
    exact = -np.mean([log_probability(text) for text in valid])
    lines = {
        f"the model: {needed[-1]:.2f}": (steps, needed),
        f"the grammar itself: {exact:.2f}": (steps, np.full(len(steps), exact)),
    }
    title = f"Nats that each of {len(valid):,} held-out French sentences needs"
    drawn = curve(lines, "steps", "nats a sentence", title)
    Path(__file__).with_name("entropy.svg").write_text(drawn, encoding="utf-8")
    points = (f"{step:.0f}: {value:.4f}" for step, value in zip(steps, needed, strict=True))
    sys.stdout.write(f"{exact:.4f} nats by the grammar; after steps {', '.join(points)}\n")


if __name__ == "__main__":
    main()

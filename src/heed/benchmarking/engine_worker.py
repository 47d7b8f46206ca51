"""One engine in a process of its own, for `engine_race`: a JSON object a line in, one out.

The first line says what to open and what to translate, and is answered with the translations and the number of
threads; every further line is a round, answered with the seconds it took.
"""

import json
import sys
import time

import torch

from heed.errors import HeedError
from heed.inference.open import load


def main() -> None:
    """Answer until nobody asks any more."""
    try:
        _answer()
    except HeedError as error:
        _say({"error": str(error)})


def _answer() -> None:
    asked = json.loads(sys.stdin.readline())
    translator = load(asked["model"], engine=asked["engine"])
    texts: list[str] = asked["texts"]
    alone = texts[: asked["alone"]]

    def translate(some: list[str]) -> list[str]:
        return [one.text for one in translator.translate(some, beam=asked["beam"], nbest=1, align=False)]

    _say({"texts": translate(texts), "threads": torch.get_num_threads()})
    for text in alone:
        translate([text])
    for _ in sys.stdin:
        started = time.perf_counter()
        translate(texts)
        between = time.perf_counter()
        for text in alone:
            translate([text])
        _say({"together": between - started, "alone": (time.perf_counter() - between) / len(alone)})


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The worker process of `engine_race`: loads one engine and times it, one JSON object per line in, one out.

The first request names the model, the engine and the texts; its reply has the translations and the number of threads.
Every further request is a round; its reply has the seconds it took.
"""

import json
import sys
import time

import torch

from heed.errors import HeedError
from heed.inference.open import load


def main() -> None:
    """Serve requests until standard input is closed."""
    try:
        _serve()
    except HeedError as error:
        _reply({"error": str(error)})


def _serve() -> None:
    request = json.loads(sys.stdin.readline())
    translator = load(request["model"], engine=request["engine"])
    texts: list[str] = request["texts"]
    single = texts[: request["single_sentences"]]

    def translate(batch: list[str]) -> list[str]:
        translations = translator.translate(batch, beam=request["beam"], nbest=1, align=False)
        return [translation.text for translation in translations]

    _reply({"texts": translate(texts), "threads": torch.get_num_threads()})
    for text in single:  # warm-up
        translate([text])
    for _ in sys.stdin:
        started = time.perf_counter()
        translate(texts)
        batch_done = time.perf_counter()
        for text in single:
            translate([text])
        single_seconds = (time.perf_counter() - batch_done) / len(single)
        _reply({"batch_seconds": batch_done - started, "single_seconds": single_seconds})


def _reply(reply: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

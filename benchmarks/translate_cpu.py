"""Translating on a CPU: heed beside CTranslate2 and Hugging Face, one model, the same sentences.

    python benchmarks/translate_cpu.py [--rounds 5] [--only heed ctranslate2] [--threads 2] [--vocabulary 32000]

The paper's base model with random weights, written once and exported for each system; whole translations, encoder and
search included, of 32 tokens each: one sentence at a time and 32 at once, greedily and with a beam of 4. Each system
has a process of its own, since two libraries with threads in one process slow each other down, and its best settings;
they are warmed up, then measured in turns, and the best round counts: whatever else a machine does only slows. Read
ratios. Beside the speed stands the share of what the machine could do: the time it takes at least to read the weights
at every step, at the measured speed of reading memory (integers of 8 bits may lie in a cache and exceed it), or to do
the arithmetic, at the measured speed of a large product; whichever is longer.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from worker import Worker  # beside this script

LENGTH = 32
SPINNING = {
    "OMP_WAIT_POLICY": "ACTIVE",
    "GOMP_SPINCOUNT": "1000000",
}  # CTranslate2's best; for heed no difference was found
SYSTEMS = {
    "ctranslate2": SPINNING,
    "ctranslate2-int8": SPINNING,
    "heed": {},
    "heed-int8": {},
    "huggingface": SPINNING,
}
TASKS = [(batch, beam) for batch in (1, 32) for beam in (1, 4)]

Ids = list[list[int]]
Translate = Callable[[Ids, int], Ids]  # source ids and a beam to target ids


def sentences(count: int, vocabulary: int) -> Ids:
    """Source sentences of 12 to 36 tokens, without the end."""
    draw = random.Random(0)
    return [[draw.randrange(3, vocabulary) for _ in range(draw.randint(11, 35))] for _ in range(count)]


# In a process of its own ----------------------------------------------------------------------------------------------


def heed_system(folder: Path, name: str) -> Translate:
    """heed's own engine. The end is its 32nd token."""
    from heed.config import SearchConfig  # noqa: PLC0415 - a process imports what it measures
    from heed.inference.open import load  # noqa: PLC0415

    engine = load(folder / "heed", engine=name).engine  # type: ignore[arg-type]

    def translate(batch: Ids, beam: int) -> Ids:
        config = SearchConfig(beam=beam, min_length=LENGTH - 1, max_length=LENGTH - 1)
        return [list(found[0].ids) for found in engine.search(batch, config, range(len(batch)))]

    return translate


def ctranslate2_system(folder: Path, name: str, threads: int) -> Translate:
    """CTranslate2 by itself: no torch in this process."""
    import ctranslate2  # noqa: PLC0415

    arithmetic = "int8" if name.endswith("int8") else "float32"
    translator = ctranslate2.Translator(str(folder / name), compute_type=arithmetic, intra_threads=threads)
    names = json.loads((folder / "names.json").read_text())
    ids = {name: number for number, name in enumerate(names)}

    def translate(batch: Ids, beam: int) -> Ids:
        written = [[names[number] for number in one] for one in batch]
        found = translator.translate_batch(
            written, beam_size=beam, min_decoding_length=LENGTH, max_decoding_length=LENGTH
        )
        return [[ids[name] for name in one.hypotheses[0]] for one in found]

    return translate


def huggingface_system(folder: Path, _name: str) -> Translate:
    """`generate` of MarianMT."""
    import torch  # noqa: PLC0415
    from transformers import MarianMTModel  # noqa: PLC0415

    model = MarianMTModel.from_pretrained(folder / "marian").eval()
    model.generation_config.forced_eos_token_id = None

    def translate(batch: Ids, beam: int) -> Ids:
        longest = max(len(one) for one in batch) + 1
        src = torch.tensor([[*one, 2, *[0] * (longest - len(one) - 1)] for one in batch])
        lengths = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "max_length": None}
        found = model.generate(src, attention_mask=(src != 0).long(), num_beams=beam, do_sample=False, **lengths)
        return [[int(number) for number in one[1:]] for one in found]

    return translate


def work(name: str, folder: Path, threads: int, vocabulary: int) -> None:
    """Answer until nobody asks any more: [batch, beam, sentences] in, seconds and what was said out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    if name.startswith("ctranslate2"):
        translate = ctranslate2_system(folder, name, threads)
    else:
        import torch  # noqa: PLC0415

        torch.set_num_threads(threads)
        translate = (heed_system if name.startswith("heed") else huggingface_system)(folder, name)
    for line in sys.stdin:
        batch, beam, count = json.loads(line)
        texts, said = sentences(count, vocabulary), []
        began = time.perf_counter()
        for first in range(0, count, batch):
            said += translate(texts[first : first + batch], beam)
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "said": said}), file=answers, flush=True)


# In the first process -------------------------------------------------------------------------------------------------


def write_models(folder: Path, systems: Sequence[str], vocabulary: int) -> None:
    """One model, as each of the systems takes it."""
    import torch  # noqa: PLC0415

    from heed.artifacts.folder import model_files  # noqa: PLC0415
    from heed.artifacts.writing import write_folder  # noqa: PLC0415
    from heed.config import DataConfig, ModelConfig, RunConfig  # noqa: PLC0415
    from heed.interop.ctranslate2_export import ctranslate2_files, vocabularies  # noqa: PLC0415
    from heed.interop.marian import export_marian  # noqa: PLC0415
    from heed.model.transformer import Transformer  # noqa: PLC0415
    from heed.text.tokenizer import Tokenizer  # noqa: PLC0415

    torch.manual_seed(0)
    config = ModelConfig(vocab_size=vocabulary)
    run = RunConfig(model=config, data=DataConfig(tokenizer="words"))
    words = [f"word{number}" for number in range(vocabulary)]
    model, tokenizers = Transformer(config), (Tokenizer.train(words, "words", vocabulary),) * 2
    write_folder(folder / "heed", model_files(model.state_dict(), run, {}, tokenizers, "random"))
    (folder / "names.json").write_text(json.dumps(vocabularies(config, tokenizers)[1]))
    for name, arithmetic in (("ctranslate2", "float32"), ("ctranslate2-int8", "int8")):
        if name in systems:
            write_folder(folder / name, ctranslate2_files(model, tokenizers, arithmetic))
    if "huggingface" in systems:
        export_marian(folder / "heed", folder / "marian")


def limits(threads: int) -> dict[str, float]:
    """Bytes a second read from memory, and operations a second of a large product, in float32 and in integers."""
    import torch  # noqa: PLC0415

    from heed.benchmarking.limits import matmul_throughput, memory_bandwidth  # noqa: PLC0415

    torch.set_num_threads(threads)
    cpu = torch.device("cpu")
    return {
        "bytes": memory_bandwidth(cpu),
        "float32": matmul_throughput("float32", cpu),
        "int8": matmul_throughput("int8", cpu),
    }


def worker(ending: ExitStack, name: str, folder: Path, asked: argparse.Namespace) -> Worker:
    """A process in which one system translates when asked to."""
    numbers = ["--threads", str(asked.threads), "--vocabulary", str(asked.vocabulary)]
    environment = {"OMP_NUM_THREADS": str(asked.threads), **SYSTEMS[name]}
    return Worker(ending, __file__, [name, str(folder), *numbers], environment)


def share_of_limit(name: str, batch: int, beam: int, speed: float, limit: dict[str, float], vocabulary: int) -> float:
    """How much of the machine a speed uses: of its memory or of its arithmetic, whichever takes longer."""
    from heed.benchmarking.limits import SearchWorkload  # noqa: PLC0415
    from heed.config import ModelConfig  # noqa: PLC0415

    count = max(batch, 8)
    read = statistics.mean(len(ids) + 1 for ids in sentences(count, vocabulary))
    in_integers = name.endswith("int8")
    least = SearchWorkload(batch, beam, read, LENGTH).roofline_seconds(
        ModelConfig(vocab_size=vocabulary),
        limit["int8" if in_integers else "float32"],
        limit["bytes"],
        1 if in_integers else 4,
    )
    return least * speed / (batch * LENGTH)


def report(found: dict[str, dict[str, list[float]]], limit: dict[str, float], vocabulary: int) -> None:
    """Tokens a second, the best of all rounds; ratios to CTranslate2 in the same arithmetic; shares of the limit."""
    for batch, beam in TASKS:
        for name, speeds in found.items():
            own = speeds[f"{batch} {beam}"]
            peer = found.get("ctranslate2-int8" if name.endswith("int8") else "ctranslate2", {}).get(f"{batch} {beam}")
            speed = max(own)
            line = {
                "batch": batch,
                "beam": beam,
                "system": name,
                "tokens a second": round(speed),
                "middle": round(statistics.median(own)),
                "times ctranslate2": round(speed / max(peer), 2) if peer else None,
                "share of the limit": round(share_of_limit(name, batch, beam, speed, limit, vocabulary), 2),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--work", nargs=2, help="used by itself: a system's process")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work[0], Path(asked.work[1]), asked.threads, asked.vocabulary)
        return
    with tempfile.TemporaryDirectory() as path, ExitStack() as ending:
        folder = Path(path)
        write_models(folder, asked.only, asked.vocabulary)
        limit = limits(asked.threads)
        print(json.dumps({"thousand million a second": {name: round(one / 1e9, 1) for name, one in limit.items()}}))
        workers = {name: worker(ending, name, folder, asked) for name in asked.only}
        said: dict[str, Ids] = {}
        for name, one in workers.items():  # one after another: they warm up undisturbed
            said[name] = one.ask([1, 1, 4])["said"]
            for batch, beam in TASKS:
                one.ask([batch, beam, max(batch, 2)])
        for name, ids in said.items():
            pairs = [pair for one, two in zip(ids, said[asked.only[0]], strict=True) for pair in zip(one, two)]  # noqa: B905
            same = statistics.mean(one == two for one, two in pairs)
            print(f"{name}: {same:.0%} of its greedy tokens are those of {asked.only[0]}", flush=True)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in workers}
        for _ in range(asked.rounds):
            for batch, beam in TASKS:
                for name, one in workers.items():
                    count = max(batch, 8)
                    took = one.ask([batch, beam, count])["seconds"]
                    found[name].setdefault(f"{batch} {beam}", []).append(count * LENGTH / took)
        report(found, limit, asked.vocabulary)


if __name__ == "__main__":
    main()

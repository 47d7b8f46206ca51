"""Translation on a CPU: heed beside CTranslate2 and Hugging Face, with one model and the same sentences.

    python benchmarks/translate_cpu.py [--model base] [--rounds 5] [--only heed ctranslate2] [--threads 2]

A model with random weights, exported for each system: the paper's base model, the tiny preset, or "tiny11", the shape
of the small models that Marian's authors deploy. Whole translations, encoder and search included, of 32 tokens each,
with batch size 1 and 32, greedy and with beam 4. Each system runs in a process of its own, since two multithreaded
libraries in one process slow each other down, and with its best settings. They are warmed up, then measured in turn,
and the best round counts, since other load only slows a machine: compare ratios. The share of the limit relates the
speed to the machine's roofline: the time to read the weights at every step at the measured memory bandwidth (weights
that stay in a cache exceed it), or to do the matmuls at the measured throughput, whichever is longer.

HEED_ISA=avx2 CT2_FORCE_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 in the environment compares the systems without AVX-512;
without the last, the matmuls of CTranslate2 on an AMD processor, which are oneDNN's, use it all the same.

How far int8 is from float32 is measured by int8_accuracy.py: outputs of random weights repeat one token.
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
}  # best for CTranslate2; makes no difference to heed
SYSTEMS = {
    "ctranslate2": SPINNING,
    "ctranslate2-int8": SPINNING,
    "heed": {},
    "heed-int8": {},
    "huggingface": SPINNING,
}
MODELS = {
    "base": {"vocab_size": 32_000},
    "tiny": {"vocab_size": 8000, "d_model": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "d_ff": 256},
    "tiny11": {
        "vocab_size": 32_000,
        "d_model": 256,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 2,
        "d_ff": 1536,
    },
}
TASKS = [(batch, beam) for batch in (1, 32) for beam in (1, 4)]

TokenSequences = list[list[int]]
Translate = Callable[[TokenSequences, int], TokenSequences]  # (source ids, beam) -> target ids


def sentences(count: int, vocabulary: int) -> TokenSequences:
    """Source sentences of 12 to 36 tokens, EOS included but not in the list."""
    draw = random.Random(0)
    return [[draw.randrange(3, vocabulary) for _ in range(draw.randint(11, 35))] for _ in range(count)]


# Worker process ---------------------------------------------------------------------------------------------------


def heed_system(folder: Path, name: str) -> Translate:
    """heed's engine; EOS is the 32nd token."""
    from heed.inference.open import load  # noqa: PLC0415
    from heed.search_config import SearchConfig  # noqa: PLC0415 - a process imports what it measures

    engine = load(folder / "heed", engine=name).engine  # type: ignore[arg-type]

    def translate(batch: TokenSequences, beam: int) -> TokenSequences:
        config = SearchConfig(beam=beam, min_length=LENGTH - 1, max_length=LENGTH - 1)
        return [list(hypotheses[0].ids) for hypotheses in engine.search(batch, config, range(len(batch)))]

    return translate


def ctranslate2_system(folder: Path, name: str, threads: int) -> Translate:
    """CTranslate2, in a process without torch."""
    import ctranslate2  # noqa: PLC0415

    arithmetic = "int8" if name.endswith("int8") else "float32"
    translator = ctranslate2.Translator(str(folder / name), compute_type=arithmetic, intra_threads=threads)
    names = json.loads((folder / "names.json").read_text())
    ids = {name: number for number, name in enumerate(names)}

    def translate(batch: TokenSequences, beam: int) -> TokenSequences:
        tokens = [[names[number] for number in sentence] for sentence in batch]
        results = translator.translate_batch(
            tokens, beam_size=beam, min_decoding_length=LENGTH, max_decoding_length=LENGTH
        )
        return [[ids[name] for name in result.hypotheses[0]] for result in results]

    return translate


def huggingface_system(folder: Path, _name: str) -> Translate:
    """`generate` of MarianMT."""
    import torch  # noqa: PLC0415
    from transformers import MarianMTModel  # noqa: PLC0415

    model = MarianMTModel.from_pretrained(folder / "marian").eval()
    model.generation_config.forced_eos_token_id = None

    def translate(batch: TokenSequences, beam: int) -> TokenSequences:
        longest = max(map(len, batch)) + 1
        src = torch.tensor([[*ids, 2, *[0] * (longest - len(ids) - 1)] for ids in batch])
        lengths = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "max_length": None}
        output = model.generate(src, attention_mask=(src != 0).long(), num_beams=beam, do_sample=False, **lengths)
        return [[int(number) for number in ids[1:]] for ids in output]

    return translate


def work(name: str, folder: Path, threads: int, model: str) -> None:
    """Serve requests on stdin: [batch, beam, sentences] in, seconds out."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a reply
    if name.startswith("ctranslate2"):
        translate = ctranslate2_system(folder, name, threads)
    else:
        import torch  # noqa: PLC0415

        torch.set_num_threads(threads)
        translate = (heed_system if name.startswith("heed") else huggingface_system)(folder, name)
    for line in sys.stdin:
        batch, beam, count = json.loads(line)
        sources = sentences(count, MODELS[model]["vocab_size"])
        began = time.perf_counter()
        for first in range(0, count, batch):
            translate(sources[first : first + batch], beam)
        print(json.dumps({"seconds": time.perf_counter() - began}), file=replies, flush=True)


# Main process ---------------------------------------------------------------------------------------------------------


def write_models(folder: Path, systems: Sequence[str], name: str) -> None:
    """Write one model in the format of each system."""
    import torch  # noqa: PLC0415

    from heed.artifacts.folder import model_files  # noqa: PLC0415
    from heed.artifacts.writing import write_folder  # noqa: PLC0415
    from heed.config import DataConfig, ModelConfig, RunConfig  # noqa: PLC0415
    from heed.interop.ctranslate2_export import ctranslate2_files, vocabularies  # noqa: PLC0415
    from heed.interop.marian import export_marian  # noqa: PLC0415
    from heed.model.transformer import Transformer  # noqa: PLC0415
    from heed.text.tokenizer import Tokenizer  # noqa: PLC0415

    torch.manual_seed(0)
    config, vocabulary = ModelConfig.model_validate(MODELS[name]), MODELS[name]["vocab_size"]
    run = RunConfig(model=config, data=DataConfig(tokenizer="words"))
    words = [f"word{number}" for number in range(vocabulary)]
    model, tokenizers = Transformer(config), (Tokenizer.train(words, "words", vocabulary),) * 2
    write_folder(folder / "heed", model_files(model.state_dict(), run, {}, tokenizers, "random"))
    (folder / "names.json").write_text(json.dumps(vocabularies(config, tokenizers)[1]))
    for system, arithmetic in (("ctranslate2", "float32"), ("ctranslate2-int8", "int8")):
        if system in systems:
            write_folder(folder / system, ctranslate2_files(model, tokenizers, arithmetic))
    if "huggingface" in systems:
        export_marian(folder / "heed", folder / "marian")


def limits(threads: int) -> dict[str, float]:
    """Memory bandwidth in bytes/s, and matmul throughput in operations/s for float32 and int8."""
    import torch  # noqa: PLC0415

    from heed.benchmarking.limits import matmul_throughput, memory_bandwidth  # noqa: PLC0415

    torch.set_num_threads(threads)
    cpu = torch.device("cpu")
    return {
        "bytes": memory_bandwidth(cpu),
        "float32": matmul_throughput("float32", cpu),
        "int8": matmul_throughput("int8", cpu),
    }


def worker(stack: ExitStack, name: str, folder: Path, options: argparse.Namespace) -> Worker:
    """The worker process of a system."""
    arguments = ["--threads", str(options.threads), "--model", options.model]
    environment = {"OMP_NUM_THREADS": str(options.threads), **SYSTEMS[name]}
    return Worker(stack, __file__, [name, str(folder), *arguments], environment)


def share_of_limit(name: str, batch: int, beam: int, speed: float, limit: dict[str, float], model: str) -> float:
    """A speed relative to the machine's roofline: memory bandwidth or matmul throughput, whichever takes longer."""
    from heed.benchmarking.limits import SearchWorkload  # noqa: PLC0415
    from heed.config import ModelConfig  # noqa: PLC0415

    count = max(batch, 8)
    source_tokens = statistics.mean(len(ids) + 1 for ids in sentences(count, MODELS[model]["vocab_size"]))
    is_int8 = name.endswith("int8")
    least = SearchWorkload(batch, beam, source_tokens, LENGTH).roofline_seconds(
        ModelConfig.model_validate(MODELS[model]),
        limit["int8" if is_int8 else "float32"],
        limit["bytes"],
        1 if is_int8 else 4,
    )
    return least * speed / (batch * LENGTH)


def report(speeds: dict[str, dict[str, list[float]]], limit: dict[str, float], model: str) -> None:
    """Print tokens/s of the best round, speedup over CTranslate2 with the same dtype, and share of the limit."""
    for batch, beam in TASKS:
        for name, by_task in speeds.items():
            rounds = by_task[f"{batch} {beam}"]
            peer = speeds.get("ctranslate2-int8" if name.endswith("int8") else "ctranslate2", {}).get(f"{batch} {beam}")
            speed = max(rounds)
            line = {
                "batch": batch,
                "beam": beam,
                "system": name,
                "tokens/s": round(speed),
                "median": round(statistics.median(rounds)),
                "speedup over ctranslate2": round(speed / max(peer), 2) if peer else None,
                "share of the limit": round(share_of_limit(name, batch, beam, speed, limit, model), 2),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="base", choices=list(MODELS))
    parser.add_argument("--work", nargs=2, help="internal: a system's worker process")
    options = parser.parse_args()
    if options.work:
        work(options.work[0], Path(options.work[1]), options.threads, options.model)
        return
    with tempfile.TemporaryDirectory() as path, ExitStack() as stack:
        folder = Path(path)
        write_models(folder, options.only, options.model)
        limit = limits(options.threads)
        print(json.dumps({"GFLOP/s, GB/s": {name: round(value / 1e9, 1) for name, value in limit.items()}}))
        workers = {name: worker(stack, name, folder, options) for name in options.only}
        for process in workers.values():  # one after another, so that they warm up undisturbed
            for batch, beam in TASKS:
                process.request([batch, beam, max(batch, 2)])
        speeds: dict[str, dict[str, list[float]]] = {name: {} for name in workers}
        for _ in range(options.rounds):
            for batch, beam in TASKS:
                for name, process in workers.items():
                    count = max(batch, 8)
                    seconds = process.request([batch, beam, count])["seconds"]
                    speeds[name].setdefault(f"{batch} {beam}", []).append(count * LENGTH / seconds)
        report(speeds, limit, options.model)


if __name__ == "__main__":
    main()

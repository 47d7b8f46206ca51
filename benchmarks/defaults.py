"""How well `heed train` does with default settings alone, on generated tasks and on your own corpora.

    python benchmarks/defaults.py [--tasks copy reverse] [--corpus multi30k=CORPUS] [--jobs 1] [-- --set …]

Trains a model per task with `heed train` and no settings, translates the test set with `heed translate`, and prints a
table: exact match (or BLEU for a corpus), training time, and the settings that were chosen. CORPUS is a folder with
`train.en`, `train.de`, `val.en` and `val.de`; its score is on the validation set. Options after `--` go to
`heed train`. Results are also appended as JSON lines to OUT/results.jsonl; tasks that are there are not run again.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from generated_tasks import TASKS, split  # beside this script

from heed.evaluation.metrics import bleu

Result = dict[str, Any]
HEED = (sys.executable, "-m", "heed")


def write_task(task: str, folder: Path) -> tuple[list[str], Path, list[str]]:
    """Write a task's files; returns the options of `heed train`, the file of test sources, and the test targets."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = split(task)
    for name in ("train", "valid"):
        (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in parts[name]))
    (folder / "test.source").write_text("".join(f"{source}\n" for source, _ in parts["test"]))
    options = ["--pairs", str(folder / "train.tsv"), "--valid-pairs", str(folder / "valid.tsv")]
    return options, folder / "test.source", [target for _, target in parts["test"]]


def corpus_files(corpus: Path) -> tuple[list[str], Path, list[str]]:
    """The options of `heed train` for a corpus, its validation sources and their references."""
    options = [f"--{split}{side}={corpus / name}" for split, part in (("", "train"), ("valid-", "val"))
               for side, name in (("source", f"{part}.en"), ("target", f"{part}.de"))]  # fmt: skip
    return options, corpus / "val.en", (corpus / "val.de").read_text().splitlines()


def run(name: str, corpus: Path | None, out: Path, extra: list[str]) -> Result:
    """Train and test one task; the log is in OUT/NAME.log."""
    folder = out / name
    options, sources, references = write_task(name, out / "text" / name) if corpus is None else corpus_files(corpus)
    with (out / f"{name}.log").open("w") as log:
        began = time.monotonic()
        subprocess.run([*HEED, "train", *options, "--out", str(folder), *extra], stderr=log, check=True)
        seconds = time.monotonic() - began
        translated = subprocess.run(
            [*HEED, "translate", str(folder), str(sources)], stdout=subprocess.PIPE, stderr=log, text=True, check=True
        )
    outputs = translated.stdout.splitlines()
    exact = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return {
        "task": name,
        "exact": 100 * exact / len(references),
        "bleu": bleu(outputs, references),
        "seconds": seconds,
        "steps": last_step(folder),
        "settings": json.loads((folder / "config.json").read_text()),
    }


def last_step(folder: Path) -> int:
    return max(json.loads(line)["step"] for line in (folder / "journal.jsonl").read_text().splitlines())


def describe(result: Result) -> str:
    """One row of the table."""
    settings = result["settings"]
    data, model, training = settings["data"], settings["model"], settings["training"]
    chosen = (
        f"{data['tokenizer']}, {model['vocab_size']:,} tokens; d_model {model['d_model']}, dropout {model['dropout']}; "
        f"batches of {training['tokens_per_batch']:,}, learning rate {training['learning_rate']:g}, label smoothing "
        f"{training['label_smoothing']}, R-Drop {training['r_drop']:g}"
    )
    score = f"{result['exact']:.1f} % exact | {result['bleu']:.1f} BLEU"
    return f"| {result['task']} | {score} | {result['steps']:,} | {result['seconds']:.0f} s | {chosen} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--corpus", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--jobs", type=int, default=1, help="tasks trained at the same time")
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    parser.add_argument("extra", nargs="*", help="options of heed train, after --")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / "results.jsonl"
    done = {json.loads(line)["task"] for line in results.read_text().splitlines()} if results.exists() else set()
    corpora: dict[str, Path | None] = dict.fromkeys(arguments.tasks)
    corpora |= {name: Path(folder) for name, _, folder in (text.partition("=") for text in arguments.corpus)}
    with ThreadPoolExecutor(arguments.jobs) as pool, results.open("a") as file:
        waiting = [
            pool.submit(run, name, corpus, arguments.out, arguments.extra)
            for name, corpus in corpora.items()
            if name not in done
        ]
        for future in waiting:
            file.write(json.dumps(future.result()) + "\n")
            file.flush()
    print("| task | exact match | BLEU | steps | training time | settings chosen |\n|---|---|---|---|---|---|")
    for line in results.read_text().splitlines():
        print(describe(json.loads(line)))


if __name__ == "__main__":
    main()

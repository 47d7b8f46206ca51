"""A process of its own that does all that heed does, plainly and in one state of torch after another.

Run by `tests/test_torch_state.py`, which reads what is printed: a state that ends the process ends only this one.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import heed
from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.backends.select import why_no_int8
from heed.cli.main import app
from heed.config import RunConfig
from heed.inference.classifier import Classifier, embed
from heed.inference.generator import Generator
from heed.inference.open import load
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

TEXTS = ["A dog runs.", "The old cat sees a red bird", "x"]
SHAPE = {"d_model": 32, "heads": 4, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 2}
TRAINED = [
    *("model.d_model=16", "model.heads=2", "model.d_ff=32", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("data.tokenizer=bytes", "data.vocab_size=259", "training.max_steps=2", "training.validate_every=1"),
]

State = Callable[[], AbstractContextManager[object]]


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[object]:
    torch.set_default_dtype(dtype)
    return nullcontext()


def default_device(device: str) -> AbstractContextManager[object]:
    torch.set_default_device(device)
    return nullcontext()


def deterministic() -> AbstractContextManager[object]:
    torch.use_deterministic_algorithms(mode=True)
    return nullcontext()


def all_at_once() -> AbstractContextManager[object]:
    states = ExitStack()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    for state in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        states.enter_context(state)
    return states


GROUPS: dict[str, dict[str, State]] = {
    "numbers": {
        **{f"default {one}": partial(default_dtype, getattr(torch, one)) for one in ("float16", "bfloat16", "float64")},
        **{f"autocast {one}": partial(torch.autocast, "cpu", getattr(torch, one)) for one in ("bfloat16", "float16")},
    },
    "places and modes": {
        **{f"device {one}": partial(default_device, one) for one in ("meta", "cuda", "cpu")},
        "inference": torch.inference_mode,
        "no grad": torch.no_grad,
        "deterministic": deterministic,
        "all at once": all_at_once,
    },
}


def back_to_start() -> None:
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(mode=False)


def write_models(folder: Path) -> None:
    """Of every kind, learnt nothing, and text to train on."""
    tokenizer = Tokenizer.train([], "bytes", 259)
    for name, model, data in (
        ("translates", {"positions": "rotary"}, {}),
        ("writes", {"kind": "decoder"}, {"task": "language-model"}),
        ("classifies", {"kind": "encoder", "labels": 2}, {"task": "classify", "labels": ["a", "b"]}),
    ):
        settings = {
            "model": {"vocab_size": 259, **SHAPE, **model},
            "data": {"tokenizer": "bytes", "vocab_size": 259, **data},
            "search": {"max_length": 12},
        }
        run = RunConfig.model_validate(settings)
        torch.manual_seed(0)
        files = model_files(Transformer(run.model).state_dict(), run, {}, (tokenizer, tokenizer), "# A model\n")
        write_folder(folder / name, files)
    (folder / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "uvwxyz"))


def found_by(translator: Translator, **settings: int) -> object:
    return [(one.text, one.score, one.alignment) for one in translator.translate(TEXTS, **settings)]  # type: ignore[arg-type]


def all_that_heed_does(folder: Path, earlier: Translator, out: Path) -> dict[str, object]:
    """Numbers of everything, to the last bit; earlier: a translator that was opened before."""
    now = heed.load(folder / "translates")
    writer, classifier = Generator.open(folder / "writes"), Classifier.open(folder / "classifies")
    trace = now.look(TEXTS[0], "Hund")
    settings = [option for setting in TRAINED for option in ("--set", setting)]
    text = ["--pairs", f"{folder}/pairs.tsv", "--valid-pairs", f"{folder}/pairs.tsv", "--cache", f"{folder}/cache"]
    app(["train", *text, "--out", str(out), *settings], standalone_mode=False)
    found: dict[str, object] = {
        f"{when} {what}": found_by(translator, **settings)
        for when, translator in (("opened before", earlier), ("opened now", now))
        for what, settings in (("greedy", {"beam": 1}), ("beam", {"beam": 4, "nbest": 2}))
    }
    if why_no_int8() is None:
        found["int8"] = found_by(load(folder / "translates", engine="heed-int8"), beam=2)
    return found | {
        "stream": list(earlier.stream(TEXTS[0])),
        "alternatives": [one.text for one in now.alternatives(TEXTS[0], "E")],
        "score": earlier.score(TEXTS, ["Ein Hund"] * 3),
        "look": [trace.cross_attention.tolist(), trace.logits.tolist(), trace.removal().values.tolist()],
        "lens and beam": [trace.lens().log_probs.tolist(), [one.ids for one in trace.beam().results()]],
        "write": [[one.log_prob for one in texts] for texts in writer.generate(["A", "B"])],
        "write as it comes": list(writer.stream("A")),
        "write, scored": writer.token_scores(TEXTS),
        "classify": [one.probabilities for one in classifier.classify(TEXTS)],
        "embed": embed(classifier.model, now.tokenizers[0], TEXTS).tolist(),
        "train": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "weights": str({weight.dtype for weight in now.model.parameters()}),
    }


def main(group: str) -> None:
    """Print what differs, state by state."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        translator = heed.load(folder / "translates")
        plain = all_that_heed_does(folder, translator, folder / "plain")
        for state, enter in GROUPS[group].items():
            with enter():
                found = all_that_heed_does(folder, translator, folder / f"in {state}")
            back_to_start()
            differing = [what for what, value in plain.items() if found[what] != value]
            print(json.dumps([state, differing]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Compare the results of all of heed's operations between torch's default state and other states.

Run by `tests/test_torch_state.py` in a separate process, since a state may crash it; prints the differences as JSON.
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
from heed.backends.select_native import why_no_int8
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
TRAINING_SETTINGS = [
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


def all_states_at_once() -> AbstractContextManager[object]:
    states = ExitStack()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    for state in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        states.enter_context(state)
    return states


GROUPS: dict[str, dict[str, State]] = {
    "dtypes": {
        **{
            f"default {name}": partial(default_dtype, getattr(torch, name))
            for name in ("float16", "bfloat16", "float64")
        },
        **{
            f"autocast {name}": partial(torch.autocast, "cpu", getattr(torch, name)) for name in ("bfloat16", "float16")
        },
    },
    "devices and modes": {
        **{f"device {name}": partial(default_device, name) for name in ("meta", "cuda", "cpu")},
        "inference": torch.inference_mode,
        "no grad": torch.no_grad,
        "deterministic": deterministic,
        "all at once": all_states_at_once,
    },
}


def restore_torch_defaults() -> None:
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(mode=False)


def write_models(folder: Path) -> None:
    """Write an untrained model of every kind, and pairs to train on."""
    tokenizer = Tokenizer.train([], "bytes", 259)
    for name, model, data in (
        ("translator", {"positions": "rotary"}, {}),
        ("language model", {"kind": "decoder"}, {"task": "language-model"}),
        ("classifier", {"kind": "encoder", "labels": 2}, {"task": "classify", "labels": ["a", "b"]}),
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


def translations(translator: Translator, **settings: int) -> object:
    translated = translator.translate(TEXTS, **settings)  # type: ignore[arg-type]
    return [(translation.text, translation.score, translation.alignment) for translation in translated]


def results_of_all_operations(folder: Path, earlier: Translator, out: Path) -> dict[str, object]:
    """The exact results of every operation; earlier: a translator that was opened in the default state."""
    translator = heed.load(folder / "translator")
    generator, classifier = Generator.open(folder / "language model"), Classifier.open(folder / "classifier")
    trace = translator.look(TEXTS[0], "Hund")
    settings = [option for setting in TRAINING_SETTINGS for option in ("--set", setting)]
    pairs = f"{folder}/pairs.tsv"
    data_options = ["--pairs", pairs, "--valid-pairs", pairs, "--cache", f"{folder}/cache"]
    app(["train", *data_options, "--out", str(out), *settings], standalone_mode=False)
    results: dict[str, object] = {
        f"{when} {search_name}": translations(each_translator, **settings)
        for when, each_translator in (("opened before", earlier), ("opened now", translator))
        for search_name, settings in (("greedy", {"beam": 1}), ("beam", {"beam": 4, "nbest": 2}))
    }
    if why_no_int8() is None:
        results["int8"] = translations(load(folder / "translator", engine="heed-int8"), beam=2)
    return results | {
        "stream": list(earlier.stream(TEXTS[0])),
        "alternatives": [alternative.text for alternative in translator.alternatives(TEXTS[0], "E")],
        "score": earlier.score(TEXTS, ["Ein Hund"] * 3),
        "look": [trace.cross_attention.tolist(), trace.logits.tolist(), trace.removal().values.tolist()],
        "lens and beam": [trace.lens().log_probs.tolist(), [hypothesis.ids for hypothesis in trace.beam().results()]],
        "write": [[text.log_prob for text in texts] for texts in generator.generate(["A", "B"])],
        "write as it comes": list(generator.stream("A")),
        "write, scored": generator.token_scores(TEXTS),
        "classify": [prediction.probabilities for prediction in classifier.classify(TEXTS)],
        "embed": embed(classifier.model, translator.tokenizers[0], TEXTS).tolist(),
        "train": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "weights": str({weight.dtype for weight in translator.model.parameters()}),
    }


def main(group: str) -> None:
    """Print the operations whose results differ, for each state."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        translator = heed.load(folder / "translator")
        expected = results_of_all_operations(folder, translator, folder / "plain")
        for state, enter in GROUPS[group].items():
            with enter():
                results = results_of_all_operations(folder, translator, folder / f"in {state}")
            restore_torch_defaults()
            differing = [operation for operation, value in expected.items() if results[operation] != value]
            print(json.dumps([state, differing]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Model folders with something wrong in them, each a function of its number; their manifests are made to fit.

Enters: whole folders of every kind, as files by name. Leaves: folders on disk of which one or two things were changed:
values of JSON, bytes, headers of safetensors, kinds of files, manifests.
"""

import hashlib
import json
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heed import DataConfig, ModelConfig, RunConfig, SearchConfig, Transformer
from heed.artifacts.checkpoint import Progress, checkpoint_path, training_state, write_checkpoint
from heed.artifacts.folder import model_files
from heed.artifacts.manifest import MANIFEST
from heed.artifacts.save import write_quantized
from heed.artifacts.writing import write_folder
from heed.interop.spm import SpmModel, tokenizer_from_spm
from heed.text.tokenizer import Tokenizer, TokenizerPair

Files = dict[str, bytes]
SMALL = {"d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}
TEXTS = ["A dog runs.", "Two men sit on a bench.", "The old cat sees a red bird."] * 3
_PIECES = {"▁": -4.0, "▁dog": -2.0, "g": -3.0, "s": -3.0, "d": -5.0, "o": -5.0, "▁d": -6.0}

DEEP = "[" * 5000 + "]" * 5000
# Values that are put in the place of others, as JSON.
STRANGE = (
    *("null", "true", "false", "0", "-1", "1", "3", "7", "2147483648", "1000000", "1000000000000", "1e308", "-0.5"),
    *('""', '"x"', '"\\ud800"', '"\\u0000"', '"⟨s⟩"', "[]", "{}", "[[]]", '{"type": "x"}', "NaN", "1e400", "-Infinity"),
    *("9" * 30, "9" * 5000, DEEP, "[" * 40 + "]" * 40, '"' + "y" * 100_000 + '"', "[" + "0," * 9999 + "0]"),
    *('{"type": "BPE"}', '{"type": "ByteLevel"}', '"Regex"', '"(a+)+$"', '"AAAA"', '"/etc/passwd"', '"encoder"'),
)


def whole_folders(path: Path) -> dict[str, Files]:
    """A folder of every kind, by its name."""
    torch.manual_seed(1)
    target, source = Tokenizer.train(TEXTS, "bpe", 270), Tokenizer.train(TEXTS, "unigram", 262)
    pieces = tokenizer_from_spm(SpmModel(_PIECES, b""), ["▁dog", "g", ">>fra<<", "▁", "s"])
    shapes: dict[str, tuple[TokenizerPair, dict[str, Any], dict[str, Any]]] = {
        "translate": ((target, target), {}, {}),
        "learned": ((target, target), {"positions": "learned", "max_length": 80, "norm": "pre"}, {}),
        "unigram": ((source, source), {"tie_embeddings": False}, {"tokenizer": "unigram"}),
        "pieces": (
            (pieces, tokenizer_from_spm(SpmModel(_PIECES, b""), ["▁dog", "g", "x"])),
            {},
            {"tokenizer": "sentencepiece"},
        ),
        "writer": ((target, target), {"kind": "decoder"}, {"task": "language-model"}),
        "classifier": ((target, target), {"kind": "encoder", "labels": 2}, {"task": "classify", "labels": ("a", "b")}),
    }
    for name, ((first, second), shape, data) in shapes.items():
        sizes = {"vocab_size": second.vocab_size} | ({} if first is second else {"source_vocab_size": first.vocab_size})
        config = ModelConfig.model_validate({**SMALL, **sizes, **shape})
        run = RunConfig(model=config, data=DataConfig(**data), search=SearchConfig(max_length=4, beam=2))
        trained = {"texts": {"training": []}, "trigrams": {"source": "abc"}}
        files = model_files(Transformer(config).state_dict(), run, trained, (first, second), "# card\n")
        write_folder(path / name, files)
        if name == "translate":
            _write_checkpoint(path, files, config)
    write_quantized(path / "translate", path / "rounded")
    (checkpoint_path(path, 3)).rename(path / "checkpoint")
    names = (*shapes, "rounded", "checkpoint")
    return {
        name: {file.name: file.read_bytes() for file in (path / name).iterdir() if file.name != MANIFEST}
        for name in names
    }


def _write_checkpoint(run: Path, files: Files, config: ModelConfig) -> None:
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([[3, 4]]), torch.tensor([[1, 5]])).sum().backward()
    optimizer.step()
    write_checkpoint(run, files, training_state(model, optimizer), Progress(step=3, best_loss=1.5, best_step=3))


def write_mutant(number: int, folders: dict[str, Files], path: Path) -> str:
    """Write mutant of this number; returns what it was made from and what was done, to be read."""
    chance = random.Random(number)
    name = chance.choice(sorted(folders))
    files, done = dict(folders[name]), []
    for _ in range(chance.choice((1, 1, 1, 2))):
        change = chance.choice(
            (_change_json, _change_json, _change_bytes, _change_header, _change_header, _change_weights)
        )
        done.append(change(chance, files))
    path.mkdir()
    for file, content in files.items():
        (path / file).write_bytes(content)
    if chance.random() < 0.15:
        done.append(_change_kind(chance, path, sorted(files)))
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in sorted(files.items())}
    manifest = json.dumps({"format": 1, "sha256": sums}).encode()
    if chance.random() < 0.1:
        whole = {MANIFEST: manifest}
        done.append(chance.choice((_change_json, _change_bytes, _change_listing))(chance, whole))
        manifest = whole.get(MANIFEST, b"")
    (path / MANIFEST).write_bytes(manifest)
    return f"{name}: {'; '.join(done)}"


def _change_json(chance: random.Random, files: Files) -> str:  # noqa: C901 - a list of changes
    """Put something else in the place of a value, take a key away, name it otherwise or give it twice."""
    name = chance.choice([one for one in sorted(files) if one.endswith(".json")])
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError):
        return f"{name} is no longer JSON"
    places: list[tuple[Any, Any]] = []
    level = [value]
    for _ in range(6):  # all places down to six levels; of a vocabulary, some
        below = []
        for one in level:
            inner = list(one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ())
            if len(inner) > 8:
                inner = chance.sample(inner, 8)
            places += [(one, key) for key, _ in inner]
            below += [child for _, child in inner]
        level = below
    if not places:
        return f"{name} has nothing to change"
    parent, key = chance.choice(places)
    what, mark = chance.choice(("value", "value", "value", "away", "name", "twice", "other")), "@@@"
    strange = chance.choice(STRANGE)
    if what == "away":
        del parent[key]
    elif what == "name" and isinstance(parent, dict):
        parent[chance.choice(("x", "", f"{key} ", "type", "⟨unk⟩"))] = parent.pop(key)
    elif what == "twice" and isinstance(parent, dict):
        parent[mark] = parent[key]
    elif what == "other":
        other, its = chance.choice(places)
        parent[key] = json.loads(json.dumps(other[its]))
    else:
        parent[key] = mark
    text = json.dumps(value, ensure_ascii=False)
    if what == "twice" and isinstance(parent, dict):
        text = text.replace(f'"{mark}"', json.dumps(key))
    files[name] = text.replace(f'"{mark}"', strange).encode(errors="surrogatepass")
    return f"{name}: {what} of {key!r:.40} {strange[:40] if what == 'value' else ''}"


def _change_bytes(chance: random.Random, files: Files) -> str:
    name = chance.choice(sorted(files))
    content = bytearray(files[name])
    place = chance.randrange(len(content)) if content else 0
    changes: dict[str, Callable[[], bytes]] = {
        "a bit": lambda: bytes((*content[:place], content[place] ^ 1 << chance.randrange(8), *content[place + 1 :])),
        "cut short": lambda: bytes(content[:place]),
        "longer": lambda: bytes(content) + chance.randbytes(chance.randrange(1, 100)),
        "empty": lambda: b"",
        "BOM": lambda: b"\xef\xbb\xbf" + bytes(content),
        "latin-1": lambda: bytes(content).replace(b'"', b'"\xe9', 1),
        "noise": lambda: chance.randbytes(chance.randrange(1, 300)),
        "zeros": lambda: bytes(len(content)),
        "shifted": lambda: bytes(content[place:] + content[:place]),
        "UTF-16": lambda: bytes(content[:2000]).decode(errors="replace").encode("utf-16"),
    }
    what = chance.choice(sorted(changes)) if content else "noise"
    files[name] = changes[what]()
    return f"{name}: {what}"


def _change_header(chance: random.Random, files: Files) -> str:  # noqa: C901, PLR0912 - a list of changes
    """Change what a safetensors file says of its tensors."""
    name = chance.choice([one for one in sorted(files) if one.endswith(".safetensors")])
    parsed = _safetensors(files[name])
    if parsed is None:
        return f"{name} is no longer safetensors"
    header, data = parsed
    odd: tuple[Any, ...]
    key = chance.choice(sorted(header))
    entry = header[key]
    whole = chance.choice(("name", "away", "copy", "length", "metadata", "order", "gap"))
    what = chance.choice(("dtype", "shape", "data_offsets", whole, whole))
    size = None
    match what:
        case "dtype":
            entry["dtype"] = chance.choice(("F16", "BF16", "F64", "I8", "I64", "BOOL", "F8_E4M3", "f32", "", 4, None))
        case "shape":
            odd = (
                [],
                [0],
                [1, *entry["shape"]],
                entry["shape"][::-1],
                [-1],
                [10**12],
                [2**63],
                [2**32, 2**32],
                "8",
                [8.0],
                None,
            )
            entry["shape"] = chance.choice(odd)
        case "data_offsets":
            start, end = entry["data_offsets"]
            odd = (
                [0, 0],
                [end, start],
                [start + 4, end + 4],
                [start, 2**62],
                [-4, end],
                [start],
                [start, end, end],
                "x",
                None,
            )
            entry["data_offsets"] = chance.choice(odd)
        case "name":
            header[chance.choice(("x", "", f"{key}.scales", key.replace("0", "1"), "__metadata__", "n" * 9999))] = (
                header.pop(key)
            )
        case "away":
            start, end = header.pop(key)["data_offsets"]
            if chance.random() < 0.7:
                data = data[:start] + data[end:]
                for other in header.values():
                    other["data_offsets"] = [one - (end - start) * (one > start) for one in other["data_offsets"]]
        case "copy":
            header["copied"] = {
                **entry,
                "data_offsets": [len(data), len(data) + entry["data_offsets"][1] - entry["data_offsets"][0]],
            }
            data += data[slice(*entry["data_offsets"])]
        case "length":
            size = chance.choice((0, 1, 2**63, 2**64 - 1, 10**8, 10**10, len(data)))
        case "metadata":
            header["__metadata__"] = chance.choice(({"a": "b"}, {"a": 1}, [], None, {"format": DEEP[:400]}))
        case "order":
            header = dict(sorted(header.items(), key=lambda _: chance.random()))
        case "gap":
            data += bytes(chance.choice((1, 4, 4096)))
    files[name] = _joined(header, data, size)
    return f"{name}: {what} of {key:.40}"


def _change_weights(chance: random.Random, files: Files) -> str:
    """Other numbers, or settings and weights changed together so that they fit each other."""
    name = chance.choice([one for one in sorted(files) if one.endswith(".safetensors")])
    parsed = _safetensors(files[name])
    if parsed is None or not parsed[1]:
        return f"{name} is no longer safetensors"
    header, data = parsed
    place = chance.randrange(0, max(1, len(data) - 4))
    what = chance.choice(("nan", "inf", "huge", "noise", "all huge"))
    number = {"nan": float("nan"), "inf": float("-inf")}.get(what, 3e38)
    if what == "noise":
        data = chance.randbytes(len(data))
    elif what == "all huge":
        data = (struct.pack("<f", number) * (len(data) // 4 + 1))[: len(data)]
    else:
        data = data[: place // 4 * 4] + struct.pack("<f", number) + data[place // 4 * 4 + 4 :]
    files[name] = _joined(header, data, None)
    return f"{name}: {what}"


def _safetensors(content: bytes) -> tuple[dict[str, Any], bytes] | None:
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
        tensors = {name: {**entry} for name, entry in header.items() if len(entry["data_offsets"]) == 2}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return None
    return (tensors, content[8 + size :]) if tensors else None


def _joined(header: dict[str, Any], data: bytes, size: int | None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def _change_listing(chance: random.Random, files: Files) -> str:
    found = json.loads(files[MANIFEST])
    name = chance.choice(sorted(found["sha256"]))
    what = chance.choice(
        ("../x", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "README.md", "heed.json", "unlisted", "many")
    )
    if what == "unlisted":
        del found["sha256"][name]
    elif what == "many":
        found["sha256"] |= {f"file-{number}": "0" * 64 for number in range(5000)}
    else:
        found["sha256"][what] = found["sha256"][name]
    files[MANIFEST] = json.dumps(found).encode()
    return f"manifest: {what}"


def _change_kind(chance: random.Random, path: Path, names: list[str]) -> str:
    """Something that is no regular file in the place of one, or one of a terabyte."""
    name = chance.choice(names)
    file = path / name
    content = file.read_bytes()
    file.unlink()
    what = chance.choice(
        ("pipe", "folder", "loop", "zero", "stdin", "nowhere", "socket", "missing", "sparse", "tty", "link")
    )
    match what:
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as door:
                here = os.getcwd()
                os.chdir(path)  # names of sockets are short
                door.bind(name)
                os.chdir(here)
        case "sparse":
            file.write_bytes(content)
            os.truncate(file, 1 << 40)
        case "link":  # as the cache of Hugging Face's hub has them: fine
            (path / "elsewhere").write_bytes(content)
            file.symlink_to("elsewhere")
        case "loop" | "zero" | "stdin" | "nowhere" | "tty":
            to = {"loop": name, "zero": "/dev/zero", "stdin": "/dev/stdin", "nowhere": "/nowhere", "tty": "/dev/tty"}
            file.symlink_to(to[what])
    return f"{name}: {what}"

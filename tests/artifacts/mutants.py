"""Tampered model folders, each determined by its number; their manifests match the tampered files.

Enters: intact folders of every kind, as files by name. Leaves: folders on disk with one or two changes: JSON
values, bytes, safetensors headers, file types, manifests.
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
# JSON texts that replace values.
STRANGE = (
    *("null", "true", "false", "0", "-1", "1", "3", "7", "2147483648", "1000000", "1000000000000", "1e308", "-0.5"),
    *('""', '"x"', '"\\ud800"', '"\\u0000"', '"⟨s⟩"', "[]", "{}", "[[]]", '{"type": "x"}', "NaN", "1e400", "-Infinity"),
    *("9" * 30, "9" * 5000, DEEP, "[" * 40 + "]" * 40, '"' + "y" * 100_000 + '"', "[" + "0," * 9999 + "0]"),
    *('{"type": "BPE"}', '{"type": "ByteLevel"}', '"Regex"', '"(a+)+$"', '"AAAA"', '"/etc/passwd"', '"encoder"'),
)


def intact_folders(path: Path) -> dict[str, Files]:
    """One valid folder of every kind, by its name."""
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
    """Write the mutant of this number; returns the folder it was made from and the changes, for error messages."""
    rng = random.Random(number)
    name = rng.choice(sorted(folders))
    files, changes = dict(folders[name]), []
    for _ in range(rng.choice((1, 1, 1, 2))):
        change = rng.choice(
            (_change_json, _change_json, _change_bytes, _change_header, _change_header, _change_weights)
        )
        changes.append(change(rng, files))
    path.mkdir()
    for file, content in files.items():
        (path / file).write_bytes(content)
    if rng.random() < 0.15:
        changes.append(_change_file_type(rng, path, sorted(files)))
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in sorted(files.items())}
    manifest = json.dumps({"format": 1, "sha256": sums}).encode()
    if rng.random() < 0.1:
        wrapped = {MANIFEST: manifest}
        changes.append(rng.choice((_change_json, _change_bytes, _change_manifest))(rng, wrapped))
        manifest = wrapped.get(MANIFEST, b"")
    (path / MANIFEST).write_bytes(manifest)
    return f"{name}: {'; '.join(changes)}"


def _change_json(rng: random.Random, files: Files) -> str:  # noqa: C901 - a list of changes
    """Replace a value, delete a key, rename it or give it twice."""
    name = rng.choice([file for file in sorted(files) if file.endswith(".json")])
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError):
        return f"{name} is no longer JSON"
    positions: list[tuple[Any, Any]] = []
    nodes = [value]
    for _ in range(6):  # every position down to six levels; in large objects a sample
        children = []
        for node in nodes:
            inner = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
            if len(inner) > 8:
                inner = rng.sample(inner, 8)
            positions += [(node, key) for key, _ in inner]
            children += [child for _, child in inner]
        nodes = children
    if not positions:
        return f"{name} has nothing to change"
    parent, key = rng.choice(positions)
    change, mark = rng.choice(("value", "value", "value", "away", "name", "twice", "other")), "@@@"
    strange = rng.choice(STRANGE)
    if change == "away":
        del parent[key]
    elif change == "name" and isinstance(parent, dict):
        parent[rng.choice(("x", "", f"{key} ", "type", "⟨unk⟩"))] = parent.pop(key)
    elif change == "twice" and isinstance(parent, dict):
        parent[mark] = parent[key]
    elif change == "other":
        other, other_key = rng.choice(positions)
        parent[key] = json.loads(json.dumps(other[other_key]))
    else:
        parent[key] = mark
    text = json.dumps(value, ensure_ascii=False)
    if change == "twice" and isinstance(parent, dict):
        text = text.replace(f'"{mark}"', json.dumps(key))
    files[name] = text.replace(f'"{mark}"', strange).encode(errors="surrogatepass")
    return f"{name}: {change} of {key!r:.40} {strange[:40] if change == 'value' else ''}"


def _change_bytes(rng: random.Random, files: Files) -> str:
    name = rng.choice(sorted(files))
    content = bytearray(files[name])
    offset = rng.randrange(len(content)) if content else 0
    changes: dict[str, Callable[[], bytes]] = {
        "a bit": lambda: bytes((*content[:offset], content[offset] ^ 1 << rng.randrange(8), *content[offset + 1 :])),
        "cut short": lambda: bytes(content[:offset]),
        "longer": lambda: bytes(content) + rng.randbytes(rng.randrange(1, 100)),
        "empty": lambda: b"",
        "BOM": lambda: b"\xef\xbb\xbf" + bytes(content),
        "latin-1": lambda: bytes(content).replace(b'"', b'"\xe9', 1),
        "noise": lambda: rng.randbytes(rng.randrange(1, 300)),
        "zeros": lambda: bytes(len(content)),
        "shifted": lambda: bytes(content[offset:] + content[:offset]),
        "UTF-16": lambda: bytes(content[:2000]).decode(errors="replace").encode("utf-16"),
    }
    change = rng.choice(sorted(changes)) if content else "noise"
    files[name] = changes[change]()
    return f"{name}: {change}"


def _change_header(rng: random.Random, files: Files) -> str:  # noqa: C901, PLR0912 - a list of changes
    """Change the header of a safetensors file."""
    name = rng.choice([file for file in sorted(files) if file.endswith(".safetensors")])
    parsed = _safetensors(files[name])
    if parsed is None:
        return f"{name} is no longer safetensors"
    header, data = parsed
    odd: tuple[Any, ...]
    key = rng.choice(sorted(header))
    entry = header[key]
    whole = rng.choice(("name", "away", "copy", "length", "metadata", "order", "gap"))
    change = rng.choice(("dtype", "shape", "data_offsets", whole, whole))
    size = None
    match change:
        case "dtype":
            entry["dtype"] = rng.choice(("F16", "BF16", "F64", "I8", "I64", "BOOL", "F8_E4M3", "f32", "", 4, None))
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
            entry["shape"] = rng.choice(odd)
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
            entry["data_offsets"] = rng.choice(odd)
        case "name":
            header[rng.choice(("x", "", f"{key}.scales", key.replace("0", "1"), "__metadata__", "n" * 9999))] = (
                header.pop(key)
            )
        case "away":
            start, end = header.pop(key)["data_offsets"]
            if rng.random() < 0.7:
                data = data[:start] + data[end:]
                for other in header.values():
                    other["data_offsets"] = [
                        offset - (end - start) * (offset > start) for offset in other["data_offsets"]
                    ]
        case "copy":
            header["copied"] = {
                **entry,
                "data_offsets": [len(data), len(data) + entry["data_offsets"][1] - entry["data_offsets"][0]],
            }
            data += data[slice(*entry["data_offsets"])]
        case "length":
            size = rng.choice((0, 1, 2**63, 2**64 - 1, 10**8, 10**10, len(data)))
        case "metadata":
            header["__metadata__"] = rng.choice(({"a": "b"}, {"a": 1}, [], None, {"format": DEEP[:400]}))
        case "order":
            header = dict(sorted(header.items(), key=lambda _: rng.random()))
        case "gap":
            data += bytes(rng.choice((1, 4, 4096)))
    files[name] = _serialized(header, data, size)
    return f"{name}: {change} of {key:.40}"


def _change_weights(rng: random.Random, files: Files) -> str:
    """Overwrite weights with NaN, infinity, huge numbers or noise."""
    name = rng.choice([file for file in sorted(files) if file.endswith(".safetensors")])
    parsed = _safetensors(files[name])
    if parsed is None or not parsed[1]:
        return f"{name} is no longer safetensors"
    header, data = parsed
    offset = rng.randrange(0, max(1, len(data) - 4))
    change = rng.choice(("nan", "inf", "huge", "noise", "all huge"))
    number = {"nan": float("nan"), "inf": float("-inf")}.get(change, 3e38)
    if change == "noise":
        data = rng.randbytes(len(data))
    elif change == "all huge":
        data = (struct.pack("<f", number) * (len(data) // 4 + 1))[: len(data)]
    else:
        data = data[: offset // 4 * 4] + struct.pack("<f", number) + data[offset // 4 * 4 + 4 :]
    files[name] = _serialized(header, data, None)
    return f"{name}: {change}"


def _safetensors(content: bytes) -> tuple[dict[str, Any], bytes] | None:
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
        tensors = {name: {**entry} for name, entry in header.items() if len(entry["data_offsets"]) == 2}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return None
    return (tensors, content[8 + size :]) if tensors else None


def _serialized(header: dict[str, Any], data: bytes, size: int | None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def _change_manifest(rng: random.Random, files: Files) -> str:
    manifest = json.loads(files[MANIFEST])
    name = rng.choice(sorted(manifest["sha256"]))
    change = rng.choice(
        ("../x", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "README.md", "heed.json", "unlisted", "many")
    )
    if change == "unlisted":
        del manifest["sha256"][name]
    elif change == "many":
        manifest["sha256"] |= {f"file-{number}": "0" * 64 for number in range(5000)}
    else:
        manifest["sha256"][change] = manifest["sha256"][name]
    files[MANIFEST] = json.dumps(manifest).encode()
    return f"manifest: {change}"


def _change_file_type(rng: random.Random, path: Path, names: list[str]) -> str:
    """Replace a regular file by something that is not one, or by a sparse file of a terabyte."""
    name = rng.choice(names)
    file = path / name
    content = file.read_bytes()
    file.unlink()
    file_type = rng.choice(
        ("pipe", "folder", "loop", "zero", "stdin", "nowhere", "socket", "missing", "sparse", "tty", "link")
    )
    match file_type:
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                working_directory = os.getcwd()
                os.chdir(path)  # a socket's path is limited to about 100 bytes
                server.bind(name)
                os.chdir(working_directory)
        case "sparse":
            file.write_bytes(content)
            os.truncate(file, 1 << 40)
        case "link":  # valid: Hugging Face's cache links its files
            (path / "elsewhere").write_bytes(content)
            file.symlink_to("elsewhere")
        case "loop" | "zero" | "stdin" | "nowhere" | "tty":
            link_targets = {
                "loop": name,
                "zero": "/dev/zero",
                "stdin": "/dev/stdin",
                "nowhere": "/nowhere",
                "tty": "/dev/tty",
            }
            file.symlink_to(link_targets[file_type])
    return f"{name}: {file_type}"

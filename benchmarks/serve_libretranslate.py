"""LibreTranslate with the weights of a heed model: run by `serve_peers.py`, with LibreTranslate's own Python.

    python benchmarks/serve_libretranslate.py MODEL EXPORTED LANGUAGES PORT COMPUTE_TYPE

Enters: a model folder with a byte-level BPE, the same model exported for CTranslate2, and en-de. The model becomes
a package of Argos Translate, whose SentencePiece model has the same merges. In LibreTranslate's favour, its sentence
splitter, a network to be downloaded, is replaced by none, since each text is a sentence, and it writes no log.
CTranslate2 runs two translations at the same time, one thread each.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

_SPECIAL = ("<unk>", "<s>", "</s>")  # what the exported model calls pad, bos and eos


def byte_of_characters() -> dict[str, int]:
    """The byte that each character of a byte-level BPE stands for, as in GPT-2."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def pieces_of(tokens: list[str]) -> list[str]:
    """The names that SentencePiece has for the tokens; what is no text of its own gets a name that occurs nowhere."""
    byte_of, pieces = byte_of_characters(), list(_SPECIAL)
    for token in tokens[len(_SPECIAL) :]:
        content = bytes(byte_of[character] for character in token)
        try:
            text = content.decode().replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        pieces.append(text if text.isprintable() and text else f"<{content.hex()}>")
    return pieces


def make_package(folder: Path, model: Path, exported: Path, languages: tuple[str, str]) -> None:
    """Write a package of Argos Translate."""
    from sentencepiece import sentencepiece_model_pb2 as protocol  # noqa: PLC0415 - only LibreTranslate's Python has it

    tokens = json.loads((exported / "shared_vocabulary.json").read_text(encoding="utf-8"))
    pieces = pieces_of(tokens)
    (folder / "model").mkdir(parents=True)
    shutil.copy(exported / "model.bin", folder / "model")
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    config |= {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
    (folder / "model/config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model/shared_vocabulary.json").write_text(json.dumps(pieces), encoding="utf-8")
    merges = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
    tokenizer = protocol.ModelProto()
    tokenizer.trainer_spec.model_type = protocol.TrainerSpec.BPE
    tokenizer.trainer_spec.pad_id = -1
    tokenizer.normalizer_spec.name = "identity"
    for number, (token, name) in enumerate(zip(tokens, pieces, strict=True)):
        kind = protocol.ModelProto.SentencePiece
        piece = tokenizer.pieces.add()
        piece.piece, piece.score = name, -float(ranks.get(token, len(ranks) + number))
        piece.type = kind.UNKNOWN if number == 0 else kind.CONTROL if number < len(_SPECIAL) else kind.NORMAL
    (folder / "sentencepiece.model").write_bytes(tokenizer.SerializeToString())
    source, target = languages
    names = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
    metadata = {"package_version": "1.0", "argos_version": "1.9", **names}
    (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def main() -> None:
    model, exported, languages, port, compute_type = sys.argv[1:]
    source, _, target = languages.partition("-")
    with tempfile.TemporaryDirectory() as path:
        os.environ |= {
            "XDG_DATA_HOME": path,
            "ARGOS_PACKAGES_DIR": f"{path}/packages",
            "ARGOS_INTER_THREADS": "2",
            "ARGOS_INTRA_THREADS": "1",
            "ARGOS_COMPUTE_TYPE": compute_type,
            "ARGOS_BEAM_SIZE": str(json.loads((Path(model) / "config.json").read_text())["search"]["beam"]),
        }
        for pair in ((source, target), (target, source)):  # with fewer than two packages it asks the network for more
            make_package(Path(path) / "packages" / "_".join(pair), Path(model), Path(exported), pair)
        from argostranslate import sbd  # noqa: PLC0415 - reads the environment
        from libretranslate.main import main as serve  # noqa: PLC0415

        sbd.MiniSBDSentencizer.split_sentences = lambda _, text: [text]
        logging.disable(logging.WARNING)
        sys.argv = ["libretranslate", "--host", "127.0.0.1", "--port", port, "--disable-web-ui", "--threads", "8"]
        serve()


if __name__ == "__main__":
    main()

"""The commands on documentation pages, and the files that they name."""

import json
import re
from pathlib import Path

# Options added to the commands of a page so that each takes about a second; the commands are unchanged otherwise.
SMALL = "--set model.d_model=16 --set model.heads=2 --set model.d_ff=16 --set data.vocab_size=300"
SHORT_RUN = f"{SMALL} --set training.max_steps=6 --set training.checkpoint_every=1"
EXTRA_OPTIONS = {"train": SHORT_RUN, "doctor": SHORT_RUN, "prepare": "--set data.vocab_size=300"}
EXTRA_OPTIONS |= {"distil": SHORT_RUN, "claims": "--scale smallest"}
EXTRA_OPTIONS |= {"demo": "--steps 2", "pronouns": "--sentences 20", "bench engines": "--sentences 2 --rounds 1"}

ENGLISH = ["A dog runs.", "Two men sit.", "A man and a dog.", "The old cat sees a red bird."] * 5
GERMAN = ["Ein Hund rennt.", "Zwei Männer sitzen.", "Ein Mann und ein Hund.", "Die alte Katze sieht einen Vogel."] * 5


def write_texts(folder: Path) -> None:
    """Write the text files that the pages name."""
    pairs = list(zip(ENGLISH, GERMAN, strict=True))
    texts = {
        "en": ENGLISH,
        "de": GERMAN,
        "tsv": [f"{source}\t{target}" for source, target in pairs],
        "jsonl": [json.dumps({"source": source, "target": target}) for source, target in pairs],
    }
    files = {f"{name}.{ending}": lines for name in ("train", "val", "test") for ending, lines in texts.items()}
    files |= {"in.txt": ENGLISH, "in.jsonl": texts["jsonl"], "other.txt": GERMAN}
    files["labels.tsv"] = [f"en\t{text}" for text in ENGLISH] + [f"de\t{text}" for text in GERMAN]
    for name, lines in files.items():
        (folder / name).write_text("".join(line + "\n" for line in lines))
    (folder / "run.toml").write_text("[training]\nseed = 7\n")


def block_commands(page: str) -> list[str]:
    """The commands in indented blocks."""
    text = re.sub(r"^```\w+\n.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^    (\S(?:.|(?<=\\)\n)*)", text, flags=re.MULTILINE)
    commands = [re.sub(r"\s+# .*", "", line) for line in lines]
    return [command for command in commands if re.search(r"\b(heed|torchrun|curl) ", command)]


def is_server(line: str) -> bool:
    return line.startswith("heed serve ") and "--new-key" not in line

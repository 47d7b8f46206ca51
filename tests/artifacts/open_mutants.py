"""Open and use the model folder named on each line of standard input; print each outcome as a line of JSON.

    python tests/artifacts/open_mutants.py MEMORY        bytes of address space beyond what the imports take

It is a separate process because a tampered folder may crash it, hang it or exhaust its memory.
"""

import json
import re
import resource
import sys
from pathlib import Path

import torch
import torch._dynamo

from heed import HeedError, Transformer
from heed.artifacts.checkpoint import PROGRESS, newest_checkpoint, restore_checkpoint
from heed.artifacts.folder import read_model_folder
from heed.inference.classifier import Classifier
from heed.inference.generator import Generator
from heed.inference.translator import Translator
from heed.serving import models  # noqa: F401 - imported before the limit, as commands import it

TEXT = "A dog  runs. é"


def use(path: Path) -> str:
    """Open a folder as the commands do, and use it once."""
    folder = read_model_folder(path)
    folder.settings()
    if (path / PROGRESS).exists():
        model = Transformer(folder.run.model)
        restore_checkpoint(path, model, torch.optim.Adam(model.parameters()))
        newest_checkpoint(path.parent)
    data, kind = folder.run.data, folder.run.model.kind
    if data.labels:
        return Classifier.open(path).classify([TEXT])[0].label
    if kind == "decoder":
        return Generator.open(path).generate(["A"])[0][0].text
    if kind == "encoder":
        return str(folder.model().encode(torch.tensor([[3, 4]])).shape)
    translator = Translator([folder.model()], folder.tokenizers, folder.run.search, data.max_tokens)
    return translator.translate([TEXT, "", "dog"])[0].text


def outcome(path: Path) -> dict[str, str]:
    try:
        return {"end": "used", "text": use(path)}
    except HeedError as error:
        text = str(error)
        return {"end": "refused" if text and "\n" not in text and len(text) < 1500 else "no line", "text": text}
    except (MemoryError, RuntimeError) as error:
        return {
            "end": "memory" if isinstance(error, MemoryError) or "alloc" in str(error) else "uncaught",
            "text": repr(error),
        }
    except BaseException as error:
        return {"end": "uncaught", "text": repr(error)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    address_space = re.search(r"^VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    assert address_space is not None
    limit = 1024 * int(address_space[1]) + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps({"end": "ready"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(outcome(Path(line.strip()))), flush=True)

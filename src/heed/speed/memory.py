"""The most memory that was taken at once."""

import importlib
import importlib.util
import platform
import re
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int | None:
    """Bytes: of a GPU those that torch had in use, of a CPU all that this process had; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if platform.system() == "Linux":  # getrusage would count what the process had that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, flags=re.MULTILINE)
        return None if found is None else 1024 * int(found[1])
    if importlib.util.find_spec("resource") is None:  # Windows
        return None
    resource = importlib.import_module("resource")
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if platform.system() == "Darwin" else 1024 * most

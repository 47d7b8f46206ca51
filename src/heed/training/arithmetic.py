"""What the bits of a run depend on besides settings, texts and seed: the arithmetic of this machine.

Sums are taken in another order by another number of threads, another processor or another version of torch; dropout
draws other numbers without compiled code. A checkpoint remembers all this, so that a run that is resumed elsewhere says
so: it still learns the same, but not bit for bit.
"""

from collections.abc import Mapping

import torch

from heed.config import RunConfig
from heed.kernels.compiled_linear import is_quicker_here
from heed.kernels.compiled_products import missing_for_compiled_code
from heed.training.learner import can_capture, is_half
from heed.version import __version__


def arithmetic_of(config: RunConfig, device: torch.device, processes: int, *, compiled: bool) -> dict[str, str]:
    """What matters here, by name. compiled: whether layers are (torch.compile)."""
    found = {"heed": __version__, "torch": torch.__version__, "processes": str(processes)}
    found["layers"] = "compiled by torch" if compiled else "as they are"
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["precision"] = "bfloat16" if is_half(config, device) else "float32"
        found["steps"] = "captured" if can_capture(config, device) else "not captured"
        return found
    found["device"] = device.type
    found["threads"] = str(torch.get_num_threads())
    found["instructions"] = torch.backends.cpu.get_cpu_capability()
    found["kernels"] = "torch's" if compiled or missing_for_compiled_code() is not None else "compiled C"
    if found["kernels"] == "compiled C" and not config.training.shard and is_quicker_here():
        found["kernels"] += ", linear layers too"
    return found


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One note for each difference; none where a checkpoint says nothing, as older ones do."""
    if not before:
        return []
    return [
        f"{name}: {before.get(name, 'none')} before, {now.get(name, 'none')} now, so the run does not go on bit for bit"
        + (f" (OMP_NUM_THREADS={before[name]} would)" if name == "threads" and name in before else "")
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]

"""What a person sees of this machine, and of what training would take on it."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heed.cli.findings import counted, title

if TYPE_CHECKING:
    from heed.backends.machine import Machine
    from heed.cli.doctor import Plan
    from heed.training.estimate import Estimate


def show_plan(console: Console, plan: "Plan", note: str = "") -> None:
    """What training would take."""
    one = plan.estimate
    title(console, f"Training with the preset {plan.preset}")
    speed = f"{one.tokens_per_step:,} tokens, {one.tokens_per_second:,.0f} tokens/s"
    rows = {
        "model": f"{plan.parameters:,} parameters, {plan.vocab_size:,} tokens",
        "device": one.device,
        "a step": f"{_duration(one.seconds_per_step)}: {speed}",
        "an epoch": "",
        "all": f"at most {_duration(one.seconds)}: {counted(one.max_steps, 'step')}",
        "memory": _memory(one),
    }
    if plan.steps_per_epoch is None:
        del rows["an epoch"]
    else:
        steps = plan.steps_per_epoch
        rows["an epoch"] = f"{_duration(steps * one.seconds_per_step)}: {counted(steps, 'step')}"
    _show_facts(console, rows)
    measured = f"An estimate, from the fastest of steps of {one.tokens_timed:,} tokens, without validation and saving."
    if (slower := one.median_seconds_per_step / one.seconds_per_step) > 1.2:
        measured += f" The steps differed: half of them took {slower:.1f} times as long, or longer."
    if one.device.startswith("CPU") and one.processor_share < 0.8:
        measured += (
            f" Other work runs here: this process got {one.processor_share:.0%} of the processor time it asked for, so "
            "training may take several times less on an idle machine."
        )
    measured += note
    console.print(Padding(Text(measured, "dim"), (0, 2, 1, 2)))


def _memory(one: "Estimate") -> str:
    needed = f"{'' if one.memory_measured else 'about '}{_size(one.memory)}"
    if one.memory_there is None:
        return needed
    if one.memory > one.memory_there:
        return (
            f"{needed}, more than the {_size(one.memory_there)} there are: lower "
            "training.tokens_per_batch and raise training.accumulate as much"
        )
    return f"{needed} of {_size(one.memory_there)}"


def show_machine(console: Console, found: "Machine") -> None:
    """What this machine has."""
    title(console, "This machine")
    memory = "" if found.memory is None else f", {_size(found.memory)} of memory"
    rows = {
        "system": f"{found.system}, Python {found.python}, torch {found.torch}",
        "CPU": f"{found.cores} cores, torch uses {found.threads} ({found.instructions}){memory}",
        "bfloat16 on it": found.cpu_bfloat16,
        "compiled code": f"{found.cpu_compiled} (for translating and learning)",
    }
    for number, gpu in enumerate(found.gpus):
        half = "bfloat16 works" if gpu.bfloat16 else "no bfloat16: set training.precision=float32"
        rows[f"GPU {number}"] = f"{gpu.name}, {_size(gpu.free)} of {_size(gpu.memory)} free, {half}"
    if not found.gpus:
        rows["GPU"] = "none that torch can use: training runs on the CPU"
    for extra, packages in found.packages.items():
        there = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        missing = [name for name, version in packages.items() if version is None]
        install = f"missing {', '.join(missing)}: pip install 'heed[{extra}]'" if missing else ""
        rows[f"for {extra}"] = "; ".join(filter(None, (there, install)))
    _show_facts(console, rows)


def _show_facts(console: Console, rows: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(value))
    console.print(Padding(table, (0, 2, 1, 2)))


def _duration(seconds: float) -> str:
    """In the two largest units: `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        if count or parts:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _size(number: int) -> str:
    """Of memory, in GiB."""
    return f"{number / 2**30:.1f} GiB"

"""`heed doctor`: what is wrong with the text, and what training would take here, before anything is trained."""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heed.cli import texts
from heed.cli.findings import Lengths, counted, show_text, title
from heed.cli.remedies import words_for
from heed.cli.settings import from_file, from_options
from heed.config import DataConfig, RunConfig
from heed.model.size import parameters
from heed.model_presets import model_preset
from heed.training.presets import Nested, check_early, merged, preset_for, training_preset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heed.text.corpus import Corpus
    from heed.text.faults import Health
    from heed.training.estimate import Estimate, Machine

_ASSUMED_TOKENS, _ASSUMED_VOCABULARY = 25, 32_000  # of a sentence, and of a text, where there is none to look at


@dataclass(frozen=True)
class Plan:
    """Settings, and what training with them would take on this machine."""

    preset: str
    parameters: int
    vocab_size: int
    steps_per_epoch: int | None  # None where no text was given
    estimate: "Estimate"


def doctor(
    source: texts.Source = [],
    target: texts.Target = [],
    pairs: texts.Pairs = [],
    text: texts.Text = [],
    valid_source: texts.ValidSource = [],
    valid_target: texts.ValidTarget = [],
    valid_pairs: texts.ValidPairs = [],
    valid_text: texts.ValidText = [],
    source_key: texts.SourceKey = "source",
    target_key: texts.TargetKey = "target",
    columns: texts.Columns = None,
    pairs_format: texts.PairsFormat = None,
    source_language: texts.SourceLanguage = None,
    target_language: texts.TargetLanguage = None,
    task: texts.Task = None,
    preset: texts.Preset = None,
    config: texts.Config = None,
    set_: texts.Set = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Examine text before training on it, and what training would take; without any text, examine this machine."""
    settings = merged(
        from_file(config), from_options(set_), texts.named_settings(task, source_language, target_language)
    )
    check_early(settings)
    if preset is not None:
        training_preset(preset)
    given = texts.Given(source, target, pairs, text), texts.Given(valid_source, valid_target, valid_pairs, valid_text)
    if not any(given):
        _examine_machine(preset, settings, as_json=as_json)
        return
    with tempfile.TemporaryDirectory() as folder:  # for standard input, whichever text that is
        learnt, held_out = texts.spooled(Path(folder), *given)
        reading = texts.Reading(source_key, target_key, columns, pairs_format)
        training, validation = texts.training_corpora(learnt, reading), texts.validation_corpora(held_out, reading)
        _examine_text((training, validation), preset, settings, f"{folder}/", as_json=as_json)


def _examine_text(
    corpora: "tuple[list[Corpus], list[Corpus]]", preset: str | None, settings: Nested, spool: str, *, as_json: bool
) -> None:
    from heed.text.health import examine  # noqa: PLC0415 - seconds that --help need not wait
    from heed.training.tasks import task_named  # noqa: PLC0415

    with Console(stderr=True).status("reading") as status:
        data = DataConfig.model_validate(settings["data"])
        task = task_named(data.task)
        learnt, held_out = ([task.corpus(one, data) for one in some] for some in corpora)
        health = examine(learnt, held_out, data, lambda doing, done: status.update(f"{doing}: {done:,}"))
        health = _without(spool, health)
        status.update("trying a few steps of training")
        plan = _plan_for(health, preset, settings, data)
    if as_json:
        found = {**_as_json(health), "plan": None if plan is None else asdict(plan)}
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    show_text(console, health)
    if plan is not None:
        _show_plan(console, plan)


def _without(spool: str, health: "Health") -> "Health":
    """The same without the folder that standard input was put into: it is gone when this is read."""
    training, validation = (
        tuple((name.replace(spool, ""), pairs) for name, pairs in corpora)
        for corpora in (health.training, health.validation)
    )
    for finding in health.findings:
        finding.examples = [
            replace(one, file=one.file.removeprefix(spool), also=one.also.removeprefix(spool))
            for one in finding.examples
        ]
    return replace(health, training=training, validation=validation)


def _examine_machine(preset: str | None, settings: Nested, *, as_json: bool) -> None:
    import numpy as np  # noqa: PLC0415 - --help need not wait for it

    from heed.training.estimate import machine  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("looking at this machine"):
        found = machine()
        plan = None
        if preset is not None or any(settings.values()):
            sizes = (settings["data"].get("vocab_size", _ASSUMED_VOCABULARY),) * 2
            labelled = settings["data"].get("task") == "classify"
            lengths = np.array([[_ASSUMED_TOKENS, 1 if labelled else _ASSUMED_TOKENS]])
            labels = settings["data"].get("labels") or (("one", "other") if labelled else ())
            plan = _plan(preset or "base", settings, labels, sizes, lengths, None)
    if as_json:
        typer.echo(json.dumps({"machine": asdict(found), "plan": None if plan is None else asdict(plan)}, indent=2))
        return
    console = Console(highlight=False)
    _show_machine(console, found)
    if plan is not None:
        assumed = f"sentences of {_ASSUMED_TOKENS} tokens and a vocabulary of {plan.vocab_size:,}"
        _show_plan(console, plan, f" Assumed are {assumed}: give your text.")


def _plan_for(health: "Health", preset: str | None, settings: Nested, data: DataConfig) -> Plan | None:
    """The plan for a text, if there is anything in it that could be learnt."""
    sides = {"pairs": [0, 1], "texts": [1], "labelled": [0]}[health.form]
    lengths = _cut(health.tokens, data.max_tokens) if data.documents else health.tokens
    lengths = lengths[((lengths > 0) & (lengths <= data.max_tokens))[:, sides].all(1)]
    if not len(lengths):
        return None
    pairs = round(health.pairs * len(lengths) / len(health.tokens))
    given = data.labels or tuple(sorted(label for label, (learnt, _) in health.labels.items() if learnt))
    return _plan(preset or preset_for(health.pairs), settings, given, health.vocab_sizes, lengths, pairs)


def _cut(lengths: "NDArray[np.int64]", most: int) -> "NDArray[np.int64]":
    """Documents in pieces of so many tokens at most."""
    import numpy as np  # noqa: PLC0415 - --help need not wait for it

    whole, rest = np.divmod(lengths[:, 1], most)
    pieces = np.concatenate((np.full(whole.sum(), most), rest[rest > 0]))
    return np.stack((np.zeros_like(pieces), pieces), 1)


def _plan(
    name: str,
    settings: Nested,
    labels: tuple[str, ...],
    vocab_sizes: tuple[int, int],
    lengths: "NDArray[np.int64]",
    pairs: int | None,
) -> Plan:
    import torch  # noqa: PLC0415 - takes seconds to import

    from heed.training.estimate import estimate  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    wanted = DataConfig.model_validate(settings["data"] | {"labels": labels})
    task = task_named(wanted.task)
    data = task.settle(wanted, ())
    model: dict[str, Any] = {"vocab_size": vocab_sizes[1], "kind": task.kind, **task.shape(data)}
    if data.separate_vocabularies:
        model["source_vocab_size"] = vocab_sizes[0]
    start = {"model": model_preset(name), "training": training_preset(name)}
    config = RunConfig.model_validate(
        merged(start, task.defaults, settings, {"model": model, "data": {"labels": data.labels}})
    )
    found = estimate(config, lengths, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    counted_by = lengths[:, 1 if "target" in task.sides else 0]
    tokens = None if pairs is None else pairs * (counted_by.mean() + 1)
    steps = None if tokens is None else max(1, round(tokens / found.tokens_per_step))
    return Plan(name, sum(part.total for part in parameters(config.model)), config.model.vocab_size, steps, found)


def _as_json(health: "Health") -> dict[str, Any]:
    return {
        "training": [{"name": name, "pairs": pairs} for name, pairs in health.training],
        "validation": [{"name": name, "pairs": pairs} for name, pairs in health.validation],
        "lengths": [asdict(Lengths.of(*key, counts)) for key, counts in health.lengths.items()],
        "findings": [
            {**asdict(one), "what": what, "remedy": remedy}
            for one in health.findings
            for what, _, remedy in (words_for(one.kind, health.form),)
        ],
        "labels": {label: {"training": one, "validation": other} for label, (one, other) in health.labels.items()},
        "notes": health.notes,
    }


def _show_plan(console: Console, plan: Plan, note: str = "") -> None:
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


def _show_machine(console: Console, found: "Machine") -> None:
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

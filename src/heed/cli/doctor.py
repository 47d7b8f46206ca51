"""`heed doctor`: faults of a text, and what training on it would take on this machine, before anything is trained.

Enters: the options of `heed train`. Leaves: a report or one JSON object on standard output, perhaps a file without the
bad pairs; exit code 2 where training would stop at a row that cannot be read.
"""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from heed.cli import options
from heed.cli.doctor_report import Lengths, show_cleaned, show_machine, show_plan, show_text
from heed.cli.options import from_options
from heed.cli.output import counted
from heed.cli.remedies import words_for
from heed.config import DataConfig, RunConfig, SearchConfig, model_preset
from heed.errors import DataError
from heed.model.size import parameter_counts
from heed.training.corpora import PairFileOptions, TextFiles, training_corpora, validation_corpora
from heed.training.presets import NestedSettings, merge_settings, preset_for, setting_layers, training_preset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heed.corpus_checks.text_errors import CorpusReport
    from heed.text.corpus import Corpus
    from heed.training.estimate import Estimate

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
    source: options.Source = [],
    target: options.Target = [],
    pairs: options.Pairs = [],
    text: options.Text = [],
    valid_source: options.ValidSource = [],
    valid_target: options.ValidTarget = [],
    valid_pairs: options.ValidPairs = [],
    valid_text: options.ValidText = [],
    source_key: options.SourceKey = "source",
    target_key: options.TargetKey = "target",
    columns: options.Columns = None,
    pairs_format: options.PairsFormat = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    task: options.Task = None,
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = [],
    write: Annotated[
        Path | None,
        typer.Option(help="A .tsv or .jsonl file to write the training pairs to, without the bad ones."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Examine text before training on it, and what training would take; without any text, examine this machine."""
    settings = merge_settings(
        *setting_layers(config, from_options(set_), task, source_language, target_language, preset)
    )
    given = TextFiles(source, target, pairs, text), TextFiles(valid_source, valid_target, valid_pairs, valid_text)
    if not any(given):
        _examine_machine(preset, settings, as_json=as_json)
        return
    with tempfile.TemporaryDirectory() as folder:  # for standard input, whichever text that is
        learnt, held_out = options.spooled(Path(folder), *given)
        reading = PairFileOptions(source_key, target_key, columns, pairs_format)
        training, validation = training_corpora(learnt, reading), validation_corpora(held_out, reading)
        _examine_text((training, validation), preset, settings, f"{folder}/", write, as_json=as_json)


def _examine_text(
    corpora: "tuple[list[Corpus], list[Corpus]]",
    preset: str | None,
    settings: NestedSettings,
    spool: str,
    write: Path | None,
    *,
    as_json: bool,
) -> None:
    from heed.corpus_checks.checks import check_corpora  # noqa: PLC0415 - seconds that --help need not wait
    from heed.corpus_checks.text_errors import check_writable, write_clean  # noqa: PLC0415 - seconds that --help need not wait
    from heed.training.tasks import task_named  # noqa: PLC0415

    with Console(stderr=True).status("reading") as status:
        data = DataConfig.model_validate(settings["data"])
        task = task_named(data.task)
        learnt, held_out = ([task.corpus(text, data) for text in given] for given in corpora)
        if write is not None:
            check_writable(write, [*learnt, *held_out], "texts" if learnt[0].text else "pairs")
        max_length = SearchConfig.model_validate(settings["search"]).max_length
        report = check_corpora(
            learnt, held_out, data, lambda doing, done: status.update(f"{doing}: {done:,}"), max_length
        )
        cleaned = None if write is None else write_clean(write, learnt, report)
        report = _without(spool, report)
        status.update("trying a few steps of training")
        plan = _plan_for(report, preset, settings, data)
    if as_json:
        written = {} if cleaned is None else {"written": asdict(cleaned)}
        shown = {**_as_json(report), "plan": None if plan is None else asdict(plan), **written}
        typer.echo(json.dumps(shown, indent=2))
    else:
        console = Console(highlight=False)
        show_text(console, report)
        if plan is not None:
            show_plan(console, plan)
        if cleaned is not None:
            show_cleaned(console, cleaned, report.form)
    if cleaned is None:
        _refuse_bad_rows(report)


def _refuse_bad_rows(report: "CorpusReport") -> None:
    """Text that training would stop at is an error, once all of it has been shown."""
    for finding in report.findings:
        if finding.kind == "unreadable":
            first = finding.examples[0]
            raise DataError(
                f"{counted(finding.count, 'row')} cannot be read, training would stop at {first.file}:{first.line}: "
                "correct them, or write all others with --write clean.tsv"
            )


def _without(spool: str, report: "CorpusReport") -> "CorpusReport":
    """The findings without the path of the temporary folder that standard input was copied to."""
    training, validation = (
        tuple((name.replace(spool, ""), pairs) for name, pairs in corpora)
        for corpora in (report.training, report.validation)
    )
    for finding in report.findings:
        finding.examples = [
            replace(example, file=example.file.removeprefix(spool), also=example.also.removeprefix(spool))
            for example in finding.examples
        ]
    return replace(report, training=training, validation=validation)


def _examine_machine(preset: str | None, settings: NestedSettings, *, as_json: bool) -> None:
    import numpy as np  # noqa: PLC0415 - --help need not wait for it

    from heed.backends.machine import describe_machine  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("looking at this machine"):
        here = describe_machine()
        plan = None
        if preset is not None or any(settings.values()):
            sizes = (settings["data"].get("vocab_size", _ASSUMED_VOCABULARY),) * 2
            labelled = settings["data"].get("task") == "classify"
            lengths = np.array([[_ASSUMED_TOKENS, 1 if labelled else _ASSUMED_TOKENS]])
            labels = settings["data"].get("labels") or (("one", "other") if labelled else ())
            plan = _plan(preset or "base", settings, labels, sizes, lengths, None)
    if as_json:
        typer.echo(json.dumps({"machine": asdict(here), "plan": None if plan is None else asdict(plan)}, indent=2))
        return
    console = Console(highlight=False)
    show_machine(console, here)
    if plan is not None:
        assumed = f"sentences of {_ASSUMED_TOKENS} tokens and a vocabulary of {plan.vocab_size:,}"
        show_plan(console, plan, f" Assumed are {assumed}: give your text.")


def _plan_for(report: "CorpusReport", preset: str | None, settings: NestedSettings, data: DataConfig) -> Plan | None:
    """The plan for a text; none where no pair could be trained on."""
    sides = {"pairs": [0, 1], "texts": [1], "labelled": [0]}[report.form]
    lengths = _cut(report.tokens, data.max_tokens) if data.documents else report.tokens
    lengths = lengths[((lengths > 0) & (lengths <= data.max_tokens))[:, sides].all(1)]
    if not len(lengths):
        return None
    pairs = round(report.pairs * len(lengths) / len(report.tokens))
    given = data.labels or tuple(sorted(label for label, (learnt, _) in report.labels.items() if learnt))
    return _plan(preset or preset_for(report.pairs), settings, given, report.vocab_sizes, lengths, pairs)


def _cut(lengths: "NDArray[np.int64]", most: int) -> "NDArray[np.int64]":
    """The lengths of documents after they are split into pieces of at most `most` tokens."""
    import numpy as np  # noqa: PLC0415 - --help need not wait for it

    whole, rest = np.divmod(lengths[:, 1], most)
    pieces = np.concatenate((np.full(whole.sum(), most), rest[rest > 0]))
    return np.stack((np.zeros_like(pieces), pieces), 1)


def _plan(
    name: str,
    settings: NestedSettings,
    labels: tuple[str, ...],
    vocab_sizes: tuple[int, int],
    lengths: "NDArray[np.int64]",
    pairs: int | None,
) -> Plan:
    from heed.backends.select import default_device  # noqa: PLC0415 - torch takes seconds to import
    from heed.training.estimate import estimate  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    wanted = DataConfig.model_validate(settings["data"] | {"labels": labels})
    task = task_named(wanted.task)
    data = task.complete_data_config(wanted, ())
    model: dict[str, Any] = {"vocab_size": vocab_sizes[1], "kind": task.kind, **task.model_settings(data)}
    if data.separate_vocabularies:
        model["source_vocab_size"] = vocab_sizes[0]
    start = {"model": model_preset(name), "training": training_preset(name)}
    config = RunConfig.model_validate(
        merge_settings(start, task.defaults, settings, {"model": model, "data": {"labels": data.labels}})
    )
    measured = estimate(config, lengths, default_device())
    counted_by = lengths[:, 1 if "target" in task.sides else 0]
    tokens = None if pairs is None else pairs * (counted_by.mean() + 1)
    steps = None if tokens is None else max(1, round(tokens / measured.tokens_per_step))
    size = sum(part.total for part in parameter_counts(config.model))
    return Plan(name, size, config.model.vocab_size, steps, measured)


def _as_json(report: "CorpusReport") -> dict[str, Any]:
    return {
        "training": [{"name": name, "pairs": pairs} for name, pairs in report.training],
        "validation": [{"name": name, "pairs": pairs} for name, pairs in report.validation],
        "lengths": [asdict(Lengths.of(*key, counts)) for key, counts in report.lengths.items()],
        "findings": [
            {**asdict(one), "what": what, "remedy": remedy}
            for one in report.findings
            for what, _, remedy in (words_for(one.kind, report.form),)
        ],
        "labels": {label: {"training": one, "validation": other} for label, (one, other) in report.labels.items()},
        "notes": report.notes,
    }

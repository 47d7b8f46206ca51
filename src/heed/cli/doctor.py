"""`heed doctor`: checks a corpus for problems and estimates the time and memory that training on it would take.

Enters: the options of `heed train`. Leaves: a report or a JSON object on standard output; with --write a file without
the bad pairs; exit code 2 if training would stop at an unreadable row.
"""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from heed.cli import options
from heed.cli.doctor_report import LengthStatistics, show_cleaned, show_estimate, show_machine, show_text, title
from heed.cli.options import from_options
from heed.cli.output import counted
from heed.cli.remedies import advice_on
from heed.config import DataConfig, RunConfig
from heed.errors import DataError
from heed.model.size import parameter_counts
from heed.model_presets import model_preset
from heed.search_config import SearchConfig
from heed.text.corpus_defaults import Hardware, choose_settings, tokenizer_is_set
from heed.text.length_bound import fit_length_bound
from heed.training.corpora import PairFileOptions, TextFiles, training_corpora, validation_corpora
from heed.training.presets import NestedSettings, merge_settings, preset_for, setting_layers, training_preset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heed.corpus_checks.text_errors import CorpusReport
    from heed.text.corpus import Corpus
    from heed.text.text_statistics import TextStatistics
    from heed.training.estimate import Estimate

_ASSUMED_SENTENCE_TOKENS, _ASSUMED_VOCAB_SIZE = 25, 32_000  # for an estimate without a corpus


@dataclass(frozen=True)
class RunEstimate:
    """The size of a run, and an estimate of its time and memory on this machine."""

    preset: str
    parameters: int
    vocab_size: int
    steps_per_epoch: int | None  # None without a corpus
    estimate: "Estimate"
    choices: tuple[str, ...] = ()  # settings that training would choose for this corpus, each with its reason
    output_length: str | None = None  # the limit that training would fit to the lengths of its targets


def doctor(
    source: options.SourceOption = [],
    target: options.TargetOption = [],
    pairs: options.PairsOption = [],
    text: options.TextOption = [],
    valid_source: options.ValidSourceOption = [],
    valid_target: options.ValidTargetOption = [],
    valid_pairs: options.ValidPairsOption = [],
    valid_text: options.ValidTextOption = [],
    source_key: options.SourceKeyOption = "source",
    target_key: options.TargetKeyOption = "target",
    columns: options.ColumnsOption = None,
    pairs_format: options.PairsFormatOption = None,
    source_language: options.SourceLanguageOption = None,
    target_language: options.TargetLanguageOption = None,
    task: options.TaskOption = None,
    preset: options.PresetOption = None,
    config: options.ConfigOption = None,
    set_: options.SetOption = [],
    write: Annotated[
        Path | None,
        typer.Option(help="Write the training pairs without the bad ones to this .tsv or .jsonl file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Check a corpus for problems and estimate training time and memory; without a corpus, describe this machine."""
    settings = merge_settings(
        *setting_layers(config, from_options(set_), task, source_language, target_language, preset)
    )
    files = TextFiles(source, target, pairs, text), TextFiles(valid_source, valid_target, valid_pairs, valid_text)
    if not any(files):
        _check_machine(preset, settings, as_json=as_json)
        return
    with tempfile.TemporaryDirectory() as folder:  # for a copy of standard input
        training_files, validation_files = options.spooled(Path(folder), *files)
        reading = PairFileOptions(source_key, target_key, columns, pairs_format)
        corpora = training_corpora(training_files, reading), validation_corpora(validation_files, reading)
        _check_corpora(corpora, preset, settings, f"{folder}/", write, as_json=as_json)


def _check_corpora(
    corpora: "tuple[list[Corpus], list[Corpus]]",
    preset: str | None,
    settings: NestedSettings,
    spool: str,
    write: Path | None,
    *,
    as_json: bool,
) -> None:
    from heed.corpus_checks.checks import check_corpora  # noqa: PLC0415 - takes seconds to import
    from heed.corpus_checks.text_errors import check_writable, write_clean  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    with Console(stderr=True).status("reading") as status:
        data = DataConfig.model_validate(settings["data"])
        task = task_named(data.task)
        training, validation = ([task.corpus(corpus, data) for corpus in split] for split in corpora)
        if write is not None:
            check_writable(write, [*training, *validation], "texts" if training[0].text else "pairs")
        max_length = SearchConfig.model_validate(settings["search"]).max_length
        report = check_corpora(
            training,
            validation,
            data,
            lambda doing, done: status.update(f"{doing}: {done:,}"),
            max_length,
            tokenizer_is_set=tokenizer_is_set(settings["data"]),
        )
        cleaned = None if write is None else write_clean(write, training, report)
        report = _without_temporary_folder(spool, report)
        status.update("timing a few training steps")
        run_estimate = _estimate_for_corpus(report, preset, settings, data)
    if as_json:
        written = {} if cleaned is None else {"written": asdict(cleaned)}
        document = {**_as_json(report), "plan": None if run_estimate is None else asdict(run_estimate), **written}
        typer.echo(json.dumps(document, indent=2))
    else:
        console = Console(highlight=False)
        show_text(console, report)
        if run_estimate is None:
            title(console, "Training")
            console.print(
                f"  No {'pair' if report.form == 'pairs' else 'text'} can be trained on: all are empty or longer than "
                f"data.max_tokens = {data.max_tokens}.\n"
            )
        else:
            show_estimate(console, run_estimate)
        if cleaned is not None:
            show_cleaned(console, cleaned, report.form)
    if cleaned is None:
        _refuse_bad_rows(report)


def _refuse_bad_rows(report: "CorpusReport") -> None:
    """Raise an error for rows that training would stop at, after the whole report is printed."""
    for finding in report.findings:
        if finding.kind == "unreadable":
            first = finding.examples[0]
            raise DataError(
                f"{counted(finding.count, 'unreadable row')}; training would stop at {first.file}:{first.line}: "
                "correct them, or write all other rows with --write clean.tsv"
            )


def _without_temporary_folder(spool: str, report: "CorpusReport") -> "CorpusReport":
    """The report with the temporary folder of standard input removed from its paths."""
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


def _check_machine(preset: str | None, settings: NestedSettings, *, as_json: bool) -> None:
    import numpy as np  # noqa: PLC0415 - slow to import

    from heed.backends.machine import describe_machine  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("checking this machine"):
        machine = describe_machine()
        run_estimate = None
        if preset is not None or any(settings.values()):
            sizes = (settings["data"].get("vocab_size", _ASSUMED_VOCAB_SIZE),) * 2
            labelled = settings["data"].get("task") == "classify"
            lengths = np.array([[_ASSUMED_SENTENCE_TOKENS, 1 if labelled else _ASSUMED_SENTENCE_TOKENS]])
            labels = settings["data"].get("labels") or (("one", "other") if labelled else ())
            run_estimate = _estimate_run(preset or "base", settings, labels, sizes, lengths, None)
    if as_json:
        typer.echo(
            json.dumps(
                {"machine": asdict(machine), "plan": None if run_estimate is None else asdict(run_estimate)}, indent=2
            )
        )
        return
    console = Console(highlight=False)
    show_machine(console, machine)
    if run_estimate is not None:
        assumed = f"sentences of {_ASSUMED_SENTENCE_TOKENS} tokens and a vocabulary of {run_estimate.vocab_size:,}"
        show_estimate(console, run_estimate, f" Assumes {assumed}: pass your corpus for a better estimate.")


def _estimate_for_corpus(
    report: "CorpusReport", preset: str | None, settings: NestedSettings, data: DataConfig
) -> RunEstimate | None:
    """The estimate for a corpus; None if it has no pair to train on."""
    sides = {"pairs": [0, 1], "texts": [1], "labelled": [0]}[report.form]
    lengths = _segment_lengths(report.tokens, data.max_tokens) if data.documents else report.tokens
    lengths = lengths[((lengths > 0) & (lengths <= data.max_tokens))[:, sides].all(1)]
    if not len(lengths):
        return None
    pairs = round(report.pairs * len(lengths) / len(report.tokens))
    labels = data.labels or tuple(sorted(label for label, (in_training, _) in report.labels.items() if in_training))
    name, sizes = preset or preset_for(report.pairs), report.vocab_sizes
    if report.form != "pairs":
        return _estimate_run(name, settings, labels, sizes, lengths, pairs)
    bound = fit_length_bound(lengths[:, 0], lengths[:, 1])
    return replace(
        _estimate_run(name, settings, labels, sizes, lengths, pairs, report.sides),
        output_length=f"at most {bound} tokens; the longest target has {lengths[:, 1].max():,}",
    )


def _segment_lengths(lengths: "NDArray[np.int64]", max_tokens: int) -> "NDArray[np.int64]":
    """The lengths of documents after they are split into segments of at most max_tokens."""
    import numpy as np  # noqa: PLC0415 - slow to import

    full, rest = np.divmod(lengths[:, 1], max_tokens)
    segments = np.concatenate((np.full(full.sum(), max_tokens), rest[rest > 0]))
    return np.stack((np.zeros_like(segments), segments), 1)


def _estimate_run(
    name: str,
    settings: NestedSettings,
    labels: tuple[str, ...],
    vocab_sizes: tuple[int, int],
    lengths: "NDArray[np.int64]",
    pairs: int | None,
    sides: "Sequence[TextStatistics]" = (),
) -> RunEstimate:
    from heed.backends.select import default_device  # noqa: PLC0415 - torch takes seconds to import
    from heed.training.estimate import estimate  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    requested = DataConfig.model_validate(settings["data"] | {"labels": labels})
    task = task_named(requested.task)
    data = task.complete_data_config(requested, ())
    model: dict[str, Any] = {"vocab_size": vocab_sizes[1], "kind": task.kind, **task.model_settings(data)}
    if data.has_two_vocabularies:
        model["source_vocab_size"] = vocab_sizes[0]
    start = {"model": model_preset(name), "training": training_preset(name)}
    device = default_device()
    merged = merge_settings(start, task.defaults, settings, {"data": {"labels": data.labels}})
    choices = choose_settings(sides, merged, settings, Hardware(device.type == "cuda")) if sides else ()
    chosen = tuple(map(str, choices))
    config = RunConfig.model_validate(merge_settings(merged, {"model": model}))
    measured = estimate(config, lengths, device)
    side_lengths = lengths[:, 1 if "target" in task.sides else 0]
    tokens = None if pairs is None else pairs * (side_lengths.mean() + 1)
    steps = None if tokens is None else max(1, round(tokens / measured.tokens_per_step))
    total = sum(part.total for part in parameter_counts(config.model))
    return RunEstimate(name, total, config.model.vocab_size, steps, measured, chosen)


def _as_json(report: "CorpusReport") -> dict[str, Any]:
    return {
        "training": [{"name": name, "pairs": pairs} for name, pairs in report.training],
        "validation": [{"name": name, "pairs": pairs} for name, pairs in report.validation],
        "lengths": [asdict(LengthStatistics.of(*key, counts)) for key, counts in report.lengths.items()],
        "findings": [
            {**asdict(finding), "what": advice.description, "remedy": advice.remedy}
            for finding in report.findings
            for advice in (advice_on(finding.kind, report.form),)
        ],
        "labels": {
            label: {"training": training, "validation": validation}
            for label, (training, validation) in report.labels.items()
        },
        "notes": report.notes,
    }

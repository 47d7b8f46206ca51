"""`heed prepare`: what `heed train` would do to its text before training, done ahead of time."""

from functools import partial

from heed.cli import options
from heed.cli.options import from_file, from_options
from heed.paths import cache_folder
from heed.training.presets import check_early, merged


def prepare(
    source: options.Source = [],
    target: options.Target = [],
    pairs: options.Pairs = [],
    text: options.Text = [],
    weight: options.Weights = [],
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
    config: options.Config = None,
    set_: options.Set = [],
    cache: options.Cache = None,
) -> None:
    """Learn a vocabulary and turn text into token ids, once; `heed train` with the same text then starts at once."""
    from heed.cli.watch import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.config import DataConfig  # noqa: PLC0415
    from heed.text.tokenizer_training import learn_tokenizers  # noqa: PLC0415
    from heed.training.material import prepare_texts, survey_all, with_validation  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    settings = merged(
        from_file(config), from_options(set_), options.named_settings(task, source_language, target_language)
    )
    check_early(settings)
    data = DataConfig.model_validate(settings["data"])
    learnt = task_named(data.task)
    reading = options.Reading(source_key, target_key, columns, pairs_format)
    place = cache or cache_folder()
    given = options.spooled(
        place,
        options.Given(source, target, pairs, text),
        options.Given(valid_source, valid_target, valid_pairs, valid_text),
    )
    corpora = options.training_corpora(given[0], reading, weight), options.validation_corpora(given[1], reading)
    with Watch() as watch:
        training, validation = (survey_all([learnt.corpus(one, data) for one in some], watch.work) for some in corpora)
        training, validation, said = with_validation(training, validation, data, watch.work)
        for note in said:
            watch.note(note)
        data = learnt.settle(data, (corpus for corpus, _ in training))
        announce = partial(watch.work, "learning a vocabulary", 0, None)
        trained = learn_tokenizers(training, data, learnt.sides, place, announce)
        tokenizers = trained.source, trained.target
        for note in trained.notes:
            watch.note(note)
        watch.note(f"a vocabulary of {', '.join(f'{one.vocab_size:,}' for one in dict.fromkeys(tokenizers))} tokens")
        for surveyed in filter(None, (training, validation)):
            encoders = learnt.encoders(tokenizers, data)
            prepared = prepare_texts(surveyed, encoders, data.max_tokens, place, watch.work)
            for line in (*prepared.notes, *prepared.corpora):
                watch.note(str(line))
            tokens = prepared.source.ids.size + prepared.target.ids.size
            watch.note(f"{tokens:,} tokens are in {prepared.folder}")

"""`heed prepare`: trains the tokenizers and tokenises a text ahead of `heed train`, which finds both in the cache."""

from heed.cli import options
from heed.cli.options import from_options
from heed.paths import cache_folder
from heed.training.corpora import PairFileOptions, TextFiles, training_corpora, validation_corpora
from heed.training.presets import merge_settings, setting_layers


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
    """Train the tokenizer and tokenise the text, once; `heed train` with the same text then starts at once."""
    from heed.cli.train import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.config import DataConfig  # noqa: PLC0415
    from heed.training.run_inputs import (  # noqa: PLC0415
        prepare_texts,
        survey_all,
        train_tokenizers,
        with_validation,
    )
    from heed.training.tasks import task_named  # noqa: PLC0415

    settings = merge_settings(*setting_layers(config, from_options(set_), task, source_language, target_language))
    data = DataConfig.model_validate(settings["data"])
    learnt = task_named(data.task)
    reading = PairFileOptions(source_key, target_key, columns, pairs_format)
    place = cache or cache_folder()
    given = options.spooled(
        place,
        TextFiles(source, target, pairs, text),
        TextFiles(valid_source, valid_target, valid_pairs, valid_text),
    )
    corpora = training_corpora(given[0], reading, weight), validation_corpora(given[1], reading)
    with Watch() as watch:
        training, validation = (survey_all([learnt.corpus(one, data) for one in some], watch.work) for some in corpora)
        training, validation = with_validation(training, validation, data, watch)
        data = learnt.complete_data_config(data, (corpus for corpus, _ in training))
        tokenizers = train_tokenizers(training, data, learnt.sides, place, watch)
        watch.note(f"a vocabulary of {', '.join(f'{one.vocab_size:,}' for one in dict.fromkeys(tokenizers))} tokens")
        for surveyed in filter(None, (training, validation)):
            encoders = learnt.encoders(tokenizers, data)
            prepared = prepare_texts(surveyed, encoders, data.max_tokens, place, watch.work)
            for line in (*prepared.notes, *prepared.corpora):
                watch.note(str(line))
            tokens = prepared.source.ids.size + prepared.target.ids.size
            watch.note(f"{tokens:,} tokens are in {prepared.folder}")

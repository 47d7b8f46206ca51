"""`heed prepare`: what `heed train` would do to its text before training, done ahead of time."""

from heed.cli import texts
from heed.cli.settings import from_file, from_options
from heed.training.presets import check_early, merged


def prepare(
    source: texts.Source = [],
    target: texts.Target = [],
    pairs: texts.Pairs = [],
    weight: texts.Weights = [],
    valid_source: texts.ValidSource = [],
    valid_target: texts.ValidTarget = [],
    valid_pairs: texts.ValidPairs = [],
    source_key: texts.SourceKey = "source",
    target_key: texts.TargetKey = "target",
    config: texts.Config = None,
    set_: texts.Set = [],
    cache: texts.Cache = None,
) -> None:
    """Learn a vocabulary and turn text into token ids, once; `heed train` with the same text then starts at once."""
    from heed.cli.watch import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.config import DataConfig  # noqa: PLC0415
    from heed.text.learn import learn_tokenizers  # noqa: PLC0415
    from heed.training.material import prepare_texts, survey_all  # noqa: PLC0415

    settings = merged(from_file(config), from_options(set_))
    check_early(settings)
    data = DataConfig.model_validate(settings["data"])
    keys, place = (source_key, target_key), cache or texts.default_cache()
    source, target, pairs = texts.spooled(place, source, target, pairs)
    with Watch() as watch:
        training = survey_all(texts.training_corpora(source, target, pairs, weight, keys), watch.work)
        validation = survey_all(texts.validation_corpora(valid_source, valid_target, valid_pairs, keys), watch.work)
        tokenizers = learn_tokenizers(training, data, place, lambda: watch.work("learning a vocabulary", 0, None))
        watch.note(f"a vocabulary of {', '.join(f'{one.vocab_size:,}' for one in dict.fromkeys(tokenizers))} tokens")
        for surveyed in filter(None, (training, validation)):
            prepared = prepare_texts(surveyed, tokenizers, data.max_tokens, place, watch.work)
            for kept in prepared.corpora:
                watch.note(str(kept))
            tokens = prepared.source.ids.size + prepared.target.ids.size
            watch.note(f"{tokens:,} tokens are in {prepared.folder}")

"""`heed prepare`: trains the tokenizer and tokenises text into the cache that `heed train` reads."""

from typing import TYPE_CHECKING

from heed.cli import options
from heed.cli.options import from_options
from heed.cli.train import TrainingProgress
from heed.config import DataConfig
from heed.paths import cache_folder
from heed.training.corpora import PairFileOptions, TextFiles, training_corpora, validation_corpora
from heed.training.presets import merge_settings, setting_layers

if TYPE_CHECKING:
    from heed.text.tokenizer import TokenizerPair


def prepare(
    source: options.SourceOption = [],
    target: options.TargetOption = [],
    pairs: options.PairsOption = [],
    text: options.TextOption = [],
    weight: options.WeightOption = [],
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
    config: options.ConfigOption = None,
    set_: options.SetOption = [],
    cache: options.CacheOption = None,
) -> None:
    """Train the tokenizer and tokenise the text into the cache, for `heed train` to use."""
    # Torch takes seconds to import.
    from heed.text.prepared import left_out_warning  # noqa: PLC0415
    from heed.training.run_inputs import prepare_texts, train_tokenizers, with_text_settings  # noqa: PLC0415
    from heed.training.run_texts import WORD_PAIRS, survey_all, with_validation, with_word_pairs  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    settings = merge_settings(*setting_layers(config, from_options(set_), task, source_language, target_language))
    data = DataConfig.model_validate(settings["data"])
    task_spec = task_named(data.task)
    reading = PairFileOptions(source_key, target_key, columns, pairs_format)
    folder = cache or cache_folder()
    files = TextFiles(source, target, pairs, text), TextFiles(valid_source, valid_target, valid_pairs, valid_text)
    training_files, validation_files = options.spooled(folder, *files)
    corpora = training_corpora(training_files, reading, weight), validation_corpora(validation_files, reading)
    with TrainingProgress() as progress:
        training, validation = (
            survey_all([task_spec.corpus(corpus, data) for corpus in split], progress.work) for split in corpora
        )
        data = with_text_settings(data, settings, training, progress)
        training, validation = with_validation(training, validation, data, progress)
        data = task_spec.complete_data_config(data, (corpus for corpus, _ in training))
        tokenizers = train_tokenizers(training, data, task_spec.sides, folder, progress)
        progress.note(f"vocabulary: {_sizes(tokenizers)} tokens")
        encoders = task_spec.encoders(tokenizers, data)
        count = len(training)
        if data.word_pairs:
            training = with_word_pairs(training, folder / f"{training[0][1].digest[:16]}-{WORD_PAIRS}", progress)
        for number, surveyed in enumerate(filter(None, (training, validation))):
            texts = len(surveyed) if number else count
            prepared = prepare_texts(surveyed, encoders, data.max_tokens, folder, progress.work, texts)
            for line in (*prepared.notes, *prepared.corpora):
                progress.note(str(line))
            if not number and (warning := left_out_warning(prepared.corpora[:texts])):
                progress.warning(warning)
            progress.note(f"{prepared.tokens:,} tokens written to {prepared.folder}")


def _sizes(tokenizers: "TokenizerPair") -> str:
    return ", ".join(f"{tokenizer.vocab_size:,}" for tokenizer in dict.fromkeys(tokenizers))

from pathlib import Path

from heed import ModelConfig
from heed.model.size import parameter_counts
from tests.cli.command import heed

PAGE = (Path(__file__).parents[2] / "docs" / "model.md").read_text()


def test_describe_shows_every_setting_and_the_number_of_parameters() -> None:
    out = heed("describe", "--preset", "big", "--vocab-size", "37000").stdout
    for name in ModelConfig.model_fields:
        assert name in out
    assert "214,245,376" in out


def test_the_parameter_table_in_the_docs_equals_the_counts() -> None:
    for part in parameter_counts(ModelConfig(vocab_size=37_000)):
        assert f"| {part.name} | {part.copies} | {part.formula} | {part.total:,} |" in PAGE

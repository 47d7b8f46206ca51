import pytest
import sacrebleu

from heed.errors import DataError
from heed.evaluation.metrics import bleu


def test_bleu_is_sacrebleus_own() -> None:
    hypotheses, references = ["the cat sat on the mat .", "a dog runs ."], ["the cat sat on a mat .", "A dog runs ."]
    assert bleu(hypotheses, references) == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert bleu(references, references) == pytest.approx(100.0)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(DataError, match="2 translations cannot be scored against 1 references"):
        bleu(["a", "b"], ["a"])

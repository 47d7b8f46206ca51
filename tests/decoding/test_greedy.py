import torch

from heed import ModelConfig
from heed.decoding.greedy import greedy
from tests.model.examples import SHAPE, make, sentences

CPU = torch.device("cpu")


def slow_greedy(model: torch.nn.Module, source: list[int]) -> list[int]:
    """Written plainly: the whole sentence again for every word, one sentence at a time."""
    written: list[int] = []
    for _ in range(len(source) + 50):
        logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *written]]))[0, -1]
        logits[[0, 1]] = -torch.inf
        word = int(logits.argmax())
        if word == 2:
            break
        written.append(word)
    return written


def test_greedy_equals_the_plain_way_and_no_sentence_minds_its_company() -> None:
    lengths = set()
    for seed in range(2):
        torch.manual_seed(seed)
        model = make(ModelConfig(**SHAPE), CPU)
        sources = [ids.tolist() for ids in sentences([5, 1, 7, 3], CPU)]
        together = greedy(model, sources)
        with torch.no_grad():
            assert together == [slow_greedy(model, source) for source in sources]
        assert [greedy(model, [source])[0] for source in sources] == together
        lengths |= {len(words) for words in together}
    assert len(lengths) > 1

"""Batches of sentences of similar length, which need little padding."""

from collections.abc import Iterator, Sequence


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Batches of sentence indices, longest first, of at most `budget` tokens, padding included.

    A longer sentence is a batch of its own.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch

"""All claims, in the order of the book."""

from heed.claims import bottleneck, heads, length_cost, path_length, positions, scaling, teacher_forcing
from heed.claims.claim import Claim

CLAIMS = {
    claim.name: claim
    for claim in (
        Claim(
            "path-length",
            "The path between any two positions is constant with self-attention; recurrence has vanishing gradients.",
            "paper, section 4 and table 1",
            path_length.measure,
            path_length.judge,
        ),
        Claim(
            "bottleneck",
            "A fixed context vector is a bottleneck; attention has none.",
            "Bahdanau et al. 2015, section 1",
            bottleneck.measure,
            bottleneck.judge,
        ),
        Claim(
            "positions",
            "Without positional encodings word order is lost, and just adding the index will not do.",
            "paper, section 3.5",
            positions.measure,
            positions.judge_need,
        ),
        Claim(
            "longer-sequences",
            "Sinusoidal encodings may allow the model to extrapolate to sequences longer than those of training.",
            "paper, section 3.5",
            positions.measure,
            positions.judge_length,
            runs="positions",
        ),
        Claim(
            "teacher-forcing",
            "All positions are trained in parallel; recurrence computes them one after the other.",
            "paper, section 1",
            teacher_forcing.measure,
            teacher_forcing.judge,
        ),
        Claim(
            "length-cost",
            "The cost of self-attention grows with the square of the length, that of recurrence in proportion to it.",
            "paper, table 1",
            length_cost.measure,
            length_cost.judge,
        ),
        Claim(
            "scaling",
            "Dividing by √d_k keeps the softmax from saturating, so that gradients stay healthy.",
            "paper, section 3.2.1",
            scaling.measure,
            scaling.judge,
        ),
        Claim(
            "heads",
            "One head is worse than several, and too many are worse than a few.",
            "paper, section 3.2.2 and table 3, rows A",
            heads.measure,
            heads.judge,
            runs="translation",
        ),
    )
}

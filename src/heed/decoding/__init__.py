"""Decoding: a step function over token ids to hypotheses, by greedy search, beam search or sampling."""

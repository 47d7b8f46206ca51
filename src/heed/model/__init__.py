"""Ids to logits. Read in the order of the paper: vocabulary, positions, attention, feed_forward, layers, transformer."""

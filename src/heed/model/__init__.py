"""Ids to logits. To be read like the paper: vocabulary, positions, attention, feed_forward, layers, transformer."""

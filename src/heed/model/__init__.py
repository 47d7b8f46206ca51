"""The model, token ids to logits; read embeddings, positions, attention, layers and transformer in this order."""

"""Inference on text: translate, generate, classify and embed with the model of a folder."""

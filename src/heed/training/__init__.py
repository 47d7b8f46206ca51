"""Ids and a model to a trained model."""

"""A model and source ids to target ids."""

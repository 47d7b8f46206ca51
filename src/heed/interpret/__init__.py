"""A model and a text to a trace of the forward pass, to experiments, to pages."""

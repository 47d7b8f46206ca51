"""Looking inside a model: traces of forward passes, ablation, head statistics, and pages that show them."""

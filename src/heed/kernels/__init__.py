"""Fast paths for `model` and `training.loss`: each has a plain twin there, and a test that both agree."""

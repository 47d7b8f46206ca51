"""Other systems' formats: theirs to model folders, and model folders to theirs."""

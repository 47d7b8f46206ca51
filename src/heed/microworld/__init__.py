"""The built-in English-French corpus, whose grammar and entropy are known."""

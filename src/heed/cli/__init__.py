"""The command line: one file per verb, or per group of verbs that share their work. Parses, prints and exits."""

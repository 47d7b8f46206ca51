"""The command line: one file a verb. It parses, prints and exits; what it prints, the other rooms know."""

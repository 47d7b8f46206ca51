"""`python -m heed` is the `heed` command."""

from heed.cli.main import main

main()

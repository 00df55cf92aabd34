"""``python -m covfree.cli``: the command line, by the same Python."""

from covfree.cli import main

main()

"""``python -m covfree.cli``: runs the command line with this Python."""

from covfree.cli import main

main()

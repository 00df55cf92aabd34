"""The Python of the pages as files, for type checkers: what a reader types must pass pyright and mypy."""

import doctest
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tutorial.md")


def code(page: str) -> str:
    """What a page's examples would be as one module."""
    examples = doctest.DocTestParser().get_examples((ROOT / page).read_text(encoding="utf-8"))
    assert examples, f"{page} has no examples"
    # A page shows values by naming them.
    return "".join(["# pyright: reportUnusedExpression=false\n", *(example.source for example in examples)])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (folder / f"{Path(page).stem.lower()}.py").write_text(code(page), encoding="utf-8")

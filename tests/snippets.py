"""The Python of the pages as files, for type checkers: what a reader types must pass pyright and mypy."""

import doctest
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Programs, each in a block of its own, and a session from top to bottom.
PROGRAMS, SESSION = "README.md", "docs/tutorial.md"


def code() -> dict[str, str]:
    """What the pages' examples are as modules, by name."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / PROGRAMS).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    examples = doctest.DocTestParser().get_examples((ROOT / SESSION).read_text(encoding="utf-8"))
    assert blocks, f"{PROGRAMS} has no programs"
    assert examples, f"{SESSION} has no examples"
    # A session shows values by naming them.
    session = ["# pyright: reportUnusedExpression=false\n", *(example.source for example in examples)]
    return {"tutorial": "".join(session)} | {f"readme_{number}": block for number, block in enumerate(blocks)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in code().items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")

"""The program of docs/from-pytorch.md runs, and gives what it says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-pytorch.md"


def test_the_program_gives_what_its_comment_says(capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed: the page's program is not run")
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(compile(program, str(PAGE), "exec"), {})
    (said,) = re.findall(r"# (0\.\d+)$", program, re.MULTILINE)
    (printed,) = re.findall(r"0\.\d+", capsys.readouterr().out)
    assert round(float(printed), 2) == float(said)

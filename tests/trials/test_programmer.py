"""A newcomer, who runs the README's code from top to bottom, each block in a session of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_code_of_the_readme_prints_what_its_last_comments_say(folder):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)((?:^# [^\n]*\n)+)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```python") == 3
    sessions = "\n".join(f"exec({code!r}, {{}})" for code, _ in blocks)
    done = subprocess.run([sys.executable, "-W", "error", "-c", sessions], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed.replace("# ", "") for _, printed in blocks)
    assert (folder / "head.npz").exists()

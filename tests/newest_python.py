"""Prints the path of the newest Python, up to 3.14, above the one that runs this; or nothing."""

import shutil
import subprocess
import sys
from pathlib import Path


def newest():
    for minor in range(14, sys.version_info[1], -1):
        name = f"python3.{minor}"
        pyenv = (Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/{name}")
        for path in filter(None, (shutil.which(name), *map(str, sorted(pyenv)))):
            # What pyenv puts on PATH fails unless that version is chosen.
            if (
                subprocess.run([path, "-c", "import venv, ssl"], capture_output=True, check=False).returncode
                == 0
            ):
                return path
    return ""


if __name__ == "__main__":
    print(newest())

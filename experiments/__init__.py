"""Experiments: every table of the papers by one command, and scripts for the rest."""

import sys
from pathlib import Path

# Scripts name each other as they do when they are run from this folder: ``import baselines``.
sys.path.append(str(Path(__file__).resolve().parent))

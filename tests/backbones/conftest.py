"""The script that makes expected outputs needs PyTorch, which the tests do without."""

collect_ignore = ["make_expected.py"]

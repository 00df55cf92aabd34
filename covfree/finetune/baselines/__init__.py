"""Baselines to compare closed-form heads with, other than FedAvg and its variants (``averaging.py``)."""

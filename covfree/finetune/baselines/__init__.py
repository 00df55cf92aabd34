"""Baselines for closed-form heads, other than FedAvg and variants of its optimisers."""

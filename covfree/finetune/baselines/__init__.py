"""Baselines for closed-form heads, other than FedAvg and its servers' variants."""

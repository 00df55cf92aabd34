"""Baselines: what closed-form heads are compared with, but for FedAvg and its servers."""

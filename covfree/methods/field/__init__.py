"""Methods for comparison with FedCOF, FedNCM and Fed3R, and functions that only they use."""

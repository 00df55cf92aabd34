"""Published methods besides FedCOF, FedNCM and Fed3R, for comparison, and functions that only they use."""

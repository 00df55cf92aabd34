"""Other published methods, for comparison, and functions that only they use."""

"""Other published methods, for comparison, and parts that only they use."""

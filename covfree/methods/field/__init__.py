"""Other methods of the field, for comparison, and the parts that they alone use."""

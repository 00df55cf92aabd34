"""The lowest layer, which imports no other: types, linear algebra, sums, checks, random keys, files."""

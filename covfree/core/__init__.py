"""The lowest layer: types, linear algebra, sums, checks, random keys, files. It uses no method."""

"""The ground floor: types, linear algebra, sums, checks, random keys, files. It knows no method."""

"""Measurements behind the numbers in the README; run with `make bench`."""

"""Measurements behind the numbers in the README; run with `make bench`."""

from worker.openmp import wait_passively

wait_passively()  # as workers do, and before torch is imported

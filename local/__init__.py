"""A whole stack on one machine: Redis, workers and the demo; also for tests and benchmarks."""

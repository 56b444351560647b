"""Shared by the tests: small models, worker processes, proxies."""

"""Hostile input for every border: `python -m tests.fuzz --help`, and a short run in the suite.

A target takes made-up input to a border and says how that ended: well, or with an error that was
designed. Anything else, and anything that takes too long or too much memory, is a finding.
"""

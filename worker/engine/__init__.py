"""Engines turn a request's ids into new tokens; all of them are judged by the reference."""

"""Prefilled caches of template versions: the entries, the map that holds them, the check."""

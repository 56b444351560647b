"""What producers and workers agree on. Imports nothing else of this project."""

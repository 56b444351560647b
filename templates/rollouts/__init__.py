"""How a new version takes over from the old one: in steps, measured, and back with one command."""

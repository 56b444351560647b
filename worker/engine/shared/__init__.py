"""The shared-prefix engine: many jobs at once on one read-only copy of their prefix."""

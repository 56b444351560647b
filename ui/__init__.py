"""The read-only page of `prefillq ui`."""

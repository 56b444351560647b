"""Redis users for tenants and workers: what each may do, and their making, changing and end."""

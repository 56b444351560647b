"""What workers do for a rollout: they try the new version, warm it, and move it on or back."""

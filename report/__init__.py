"""What a run's log says about it: numbers and one HTML page."""

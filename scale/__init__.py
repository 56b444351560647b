"""How many workers there should be: what the queues say now, and what a trace would have needed."""

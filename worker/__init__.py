"""The side that computes: model, prefix caches, engine and the Celery worker around them."""

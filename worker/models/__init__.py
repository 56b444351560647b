"""Getting models: from the catalog, from the hub, or from a folder or GGUF file at hand."""

from worker.models.fetch import fetch_model

__all__ = ["fetch_model"]

"""The worker's Prometheus endpoint: what is counted, what is read at each scrape, and the server.

Nothing here is imported by a worker without `--metrics-port`.
"""

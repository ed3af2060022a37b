"""Metrics in the format of Prometheus, and health: of the broker, read with a key, and of the gateway itself."""

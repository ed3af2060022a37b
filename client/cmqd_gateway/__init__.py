"""The gateway: an HTTP server that is a client of the broker. CMQ's API 2.0, a JSON API, metrics and health."""

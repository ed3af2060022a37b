"""The JSON API: queues, messages, topics and keys for curl and for languages without a client of cmqd.

``table`` declares every operation once: method, path, types and function. The routes, the OpenAPI document and the
tests read that table.
"""

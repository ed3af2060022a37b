"""Copies of messages of a log into queues and topics: count, journal, requests, and their delivery in order.

The only room of this package that knows the client.
"""

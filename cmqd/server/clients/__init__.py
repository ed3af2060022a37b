"""Clients, regardless of the wire protocol: their connections, events, and what is kept for each of them."""

"""Callers of the gateway: their keys, the secrets of the keys, and rates."""

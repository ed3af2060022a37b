"""Attacks on a server of its own, and the latency of a healthy client beside them."""

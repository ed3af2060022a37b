"""Attacks on a fresh server, and the latency of a healthy client meanwhile."""

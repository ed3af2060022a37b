"""Delayed messages: their activation, and their bodies."""

"""Broker time of a history: its bounds at any moment, and the rules for broker time itself."""

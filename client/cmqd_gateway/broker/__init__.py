"""Connections to the broker, with the keys of the callers and with the gateway's own key."""

"""Commands for topics and their subscriptions."""

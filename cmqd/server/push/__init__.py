"""Pushes to URLs: held until durable and signable, posted, and their results."""

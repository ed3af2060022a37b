"""Receives, their waits and their leases: delivery, deletes, releases, visibility timeouts; and peeks."""

"""Administration and lists of queues, and the deletion of unused queues."""

"""Facts about queues, topics and producers. Records alone change facts, by the same methods live and in recovery."""

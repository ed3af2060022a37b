"""Facts about queues, topics and producers. Records alone change them, by the same methods live and in recovery."""

"""The administration of a server: its audit trail, connections, settings, metrics, segments and lists of queues."""

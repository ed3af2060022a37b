"""Topics: administration, publishes, deliveries, and tests of filters."""

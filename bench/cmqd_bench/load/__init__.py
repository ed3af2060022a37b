"""The load over the native protocol: connections, producers and consumers, the clock of an open loop."""

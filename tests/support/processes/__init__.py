"""Real processes of the broker, the server and the gateway, their environment, ports and network."""

"""The process around the server: start, end, signals, addresses, and the gateway that runs as a child."""

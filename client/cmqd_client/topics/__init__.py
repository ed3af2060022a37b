"""The reports of a topic: filters tested against a message, waiting messages, and deliveries."""

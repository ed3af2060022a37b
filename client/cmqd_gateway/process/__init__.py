"""The process of the gateway: command, settings, reload, and log lines."""

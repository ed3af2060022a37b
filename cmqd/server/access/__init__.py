"""Access to the server: accounts, keys and roles, the checks of requests, and the traces of administration."""

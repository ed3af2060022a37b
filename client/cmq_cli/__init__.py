"""The command line ``cmq``: queues, messages, accounts and the server, from a terminal or a script.

``app`` builds the command tree, ``commands`` has a module for each group of commands, ``session`` holds the options
that all commands share, and ``output`` prints. Commands reach the server through ``cmqd_client`` only.
"""

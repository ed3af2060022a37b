"""The command line ``cmq``: queues, messages, accounts and the server, from a terminal or a script.

``app`` is the command tree with the options that all commands share, ``commands`` has one module for each group,
``session`` the options and the output of a command. Commands talk to the server through ``cmqd_client`` only.
"""

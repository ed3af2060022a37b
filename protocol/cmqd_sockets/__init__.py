"""Sockets of the processes of cmqd that listen, broker and gateway: descriptors, addresses, and the begin of TLS.

The package knows no other room.
"""

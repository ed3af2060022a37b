"""The thread with an event loop behind :mod:`cmqd_client.sync`, and the generator of that module."""

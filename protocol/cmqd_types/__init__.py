"""Types shared by the core, the wire format, the disk format and the client, declared once.

Module ``messages`` has the forms of a message, ``keys`` the roles of access keys. The package imports only msgspec and
has no behaviour.
"""

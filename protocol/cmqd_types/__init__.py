"""Types shared by the core, the wire format, the disk format and the client, declared once.

Module ``attributes`` has the attributes of queues, topics and subscriptions, ``messages`` the forms of a message,
``keys`` the roles of access keys, ``actors`` the clients that change messages. The package imports only msgspec and has
no behaviour.
"""

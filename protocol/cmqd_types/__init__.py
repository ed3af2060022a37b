"""Types that the core, the wire format, the disk format and the client share, each declared once.

Module ``messages`` has a message in each of its forms. The package imports msgspec alone and does nothing.
"""

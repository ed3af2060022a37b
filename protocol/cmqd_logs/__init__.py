"""Log lines of the processes of cmqd, broker and gateway: their form, and a limit so that callers cannot fill a disk.

Module ``limit`` counts lines by kind and caller, ``levels`` has the choices of the settings, ``lines`` the
configuration of structlog, ``quick_start`` its import by the commands. The package knows no other room.
"""

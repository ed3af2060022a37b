"""Logs on disk: drivers of a log, damage, disks without room, and WALs as a crash leaves them."""

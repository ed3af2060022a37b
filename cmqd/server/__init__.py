"""The edge: loop, sockets and clock."""

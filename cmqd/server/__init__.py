"""The server: loop, sockets and clock."""

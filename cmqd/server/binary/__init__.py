"""The binary protocol of clients: listening sockets, connections, the plain-text check of a TLS port."""

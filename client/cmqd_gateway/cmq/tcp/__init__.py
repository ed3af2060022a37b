"""CMQ's TCP protocol as a door of the gateway: the program's side is the TCP SDK of CMQ, without a change."""

"""The parts that exist only with redundancy: a standby, a takeover, and a leader that must prove its lead."""

"""States of messages at one row of the log: waiting, deleted, dead-lettered, expired."""

"""States of messages at a row of the log: waiting, deleted, dead-lettered, expired."""

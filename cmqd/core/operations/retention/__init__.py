"""The ends of stored messages, by floors and expiry, and the rewind of deleted messages."""

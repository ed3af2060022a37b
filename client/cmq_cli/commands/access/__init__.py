"""Commands for accounts, keys, the audit log, and contexts."""

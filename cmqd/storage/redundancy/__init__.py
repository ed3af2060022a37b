"""Parts of storage that exist with redundancy only: the log in an engine, and the folder as a cache of that log."""

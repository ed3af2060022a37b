"""Segments open for writing: the file, its connection, and the measure of its WAL."""

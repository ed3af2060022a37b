"""The functions of the operations, by noun: each asks the client of its call, and converts the result."""

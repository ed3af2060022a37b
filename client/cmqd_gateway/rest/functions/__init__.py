"""The functions of the operations, by noun: a function asks the client of its call, and converts the result."""

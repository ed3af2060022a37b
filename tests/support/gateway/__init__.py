"""A gateway before a broker in the process of the test, and calls of both HTTP APIs."""

"""Parts of crash tests: a history of operations with its checker, a broker that can be killed, load for
the broker, and a tracer that tells which bytes a process had made durable.
"""

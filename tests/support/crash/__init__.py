"""What crash tests need: a history of operations with its checker, a broker that can be killed, load for
it, and a tracer that tells which bytes a process had made durable.
"""

"""The fold of records over positions: the facts about the messages of a queue at one row of the log.

The broker's index is built from this package, and readers of the log (the Spark connector) use the same code, so both
come to the same sets of positions. Pure: no clock, no disk, no decision.
"""

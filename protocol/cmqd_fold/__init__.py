"""The fold of records over positions: the facts about the messages of a queue at one row of the log.

The index of the broker and the states of the Spark connector are made by this package, so both come to the same sets of
positions. Pure: no clock, no disk, no decision.
"""

"""The fold of records over positions: the facts about the messages of a queue at a row of the log.

The broker and the Spark connector share this package, and therefore come to equal sets of positions. Pure: no clock, no
disk, no decision.
"""

"""The log as its readers see it: the messages that each row stored, and the states and lives of messages.

Broker, Spark connector and command line share this package. Pure: no clock, no disk, no decision.
"""

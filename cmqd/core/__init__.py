"""The broker's rules, pure: no sockets, no disk, no clock, no randomness.

Time comes in as ``now_ms``, ids and keys as arguments. Operations return an :class:`~cmqd.core.outcome.Outcome`;
facts are changed by ``apply(record)`` alone, live and in recovery alike.
"""

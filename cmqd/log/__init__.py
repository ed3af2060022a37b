"""The log as the server sees it: interface, value types, errors.

==============  ==========================================================================
``interface``   ``Log``, the calls of every log; ``Segments``, an extra for readers of files
``values``      the types that these calls take and return, one declaration each
``errors``      ``LogError``, ``LogFailed``
==============  ==========================================================================

Implementations are packages beside this one: ``cmqd.storage`` (SQLite files, written by a process of its own) and
``cmqd.memory_log``. An implementation imports this package; this package imports no implementation, and neither does
the server. Only the daemon names the log that it opens. ``tests/log`` holds the suite that each implementation passes.
"""

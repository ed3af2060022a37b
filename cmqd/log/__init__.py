"""The log as the server sees it: interface, value types, errors.

==============  ==========================================================================
``interface``   ``Log``, the calls of every log; ``Segments``, an extra for readers of files
``values``      the types that these calls take and return, declared once
``log_errors``  ``LogError``, ``LogFailed``
==============  ==========================================================================

Implementations are packages beside this package: ``cmqd.storage`` (SQLite files, written by a process of its own) and
``cmqd.memory_log``. An implementation imports this package. This package imports no implementation, and neither does
the server: the daemon alone names the log that it opens. ``tests/log`` holds the suite that every implementation
passes.
"""

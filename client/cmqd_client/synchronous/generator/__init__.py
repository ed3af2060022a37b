"""The generator of ``cmqd_client/sync.py``: ``python -m cmqd_client.synchronous.generator``; ``make docs`` runs it.

Every class of the client with an async method that programs can reach gets a synchronous twin with the same names
and types; ``connect`` too. A docstring of a twin is the first sentence of the asynchronous docstring, and names it for
the rest. A new method, attribute or class appears by running this module, and
``tests/client/test_sync.py`` fails until then. What cannot be turned by rule (an unknown kind of callback, a result
that hides an asynchronous object) is an error that names the method, never a gap.

The rules:

- ``async def``: the call runs in the loop of the client's thread, and waits (``Portal.call``).
- A function that returns an async iterator or an async context manager: a plain one.
- A parameter or result of a class with a twin: converted, also in unions with None and in lists. The twin of a generic
  class has the same type parameters.
- A callback: where the caller waits for it, it runs in the caller's thread; see ``CALLBACKS``.
- Properties and attributes that ``__init__`` sets: properties.

The generator is not in the wheel.
"""

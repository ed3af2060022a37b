"""The engine: a replicated copy of the log behind the storage, and the fencing of its leader (decision 0194).

=============  ======================================================================================
``interface``  ``Engine``, the calls that a broker makes, and the values that they take and return
``errors``     ``EngineError`` and the errors below it
``fencing``    ``FencedEngine``: the fencing protocol, and all of its decisions, over any ``Database``
``database``   ``Database`` and ``Session``: the single steps that the protocol is made of
``memory``     a database in memory with faults to order, for tests
=============  ======================================================================================

Every call blocks and belongs to threads; no loop waits in it. Clock, pause, stop and randomness come in as arguments.
"""

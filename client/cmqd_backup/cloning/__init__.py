"""``cmqd clone``: a new log with the waiting messages of a data folder or backup, disarmed, for a test or a laptop.

    hold the source ─► fold its states (``source_state``) ─► read the waiting messages (``source_rows``)
    ─► hide what is to be hidden (``masking``) ─► a new log (``new_log``), accounts anew, the manifest last

No byte of a file of the source is copied: each record of the clone is made from facts that were chosen for it.
"""

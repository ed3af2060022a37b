"""CMQ's API 2.0: ``/v2/index.php?Action=...`` and ``/?Action=...`` with signed parameters, for CMQ's own SDKs."""

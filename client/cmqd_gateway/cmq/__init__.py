"""CMQ's operations, and the doors that lead to them: API 2.0 in :mod:`cmqd_gateway.cmq.api2`."""

"""A client's view: a broker behind a link that fails to order, a clock that a test turns, and raw requests."""

"""Messages as programs see them: typed bodies, ids, sends, requests with replies, and spans."""

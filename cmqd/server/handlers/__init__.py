"""The handlers of requests, a room per theme; ``dispatch`` joins them."""

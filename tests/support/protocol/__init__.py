"""Both machines of the protocol joined in memory, golden vectors, and a reader of msgpack of our own."""

"""The wire protocol of cmqd, without I/O: frames, messages and the state machines of both sides."""

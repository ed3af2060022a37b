"""Runtime: intentions and caches. A restart forgets the runtime, and a start makes a new runtime from the facts."""

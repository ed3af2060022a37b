"""Runtime: intentions and caches. A restart forgets the runtime and makes it anew from the facts."""

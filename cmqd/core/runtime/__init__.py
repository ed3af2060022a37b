"""Runtime: intentions and caches. A restart forgets all of it, and makes it anew from the facts."""

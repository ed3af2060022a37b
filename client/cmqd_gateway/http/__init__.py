"""HTTP requests of all faces: limits of connections, bodies, long work, and answers."""

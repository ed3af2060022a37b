"""The load over HTTP, the HTTP servers under it, and the endpoints that receive pushes."""

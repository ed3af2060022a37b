"""Load over HTTP, the HTTP servers under load, and the endpoints that receive pushes."""

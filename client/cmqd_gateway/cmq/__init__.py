"""API 2.0 of CMQ over HTTP, on the native client."""

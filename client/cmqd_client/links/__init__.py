"""The path of a request to the server: links that reconnect, hosts tried in turn, repeats, and the numbers of sends."""

"""How the daemon is asked: an HTTP server on a Unix socket, its client, and the commands that use it."""

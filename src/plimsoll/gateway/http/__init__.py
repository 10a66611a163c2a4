"""The HTTP server: routes, request bodies, replies, connections."""

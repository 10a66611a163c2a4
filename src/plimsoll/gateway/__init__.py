"""Where agents meet the policy: wire dialects, sessions, upstreams, and the server."""

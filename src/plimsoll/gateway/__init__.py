"""The gateway between agents and the policy: HTTP server, sessions, wire dialects, upstreams."""

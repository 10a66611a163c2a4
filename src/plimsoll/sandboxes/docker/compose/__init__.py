"""Tasks with a docker-compose.yaml: main is the sandbox, other services run beside it."""

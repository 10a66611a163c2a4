"""Dockerfiles: the parser, word expansion, build stages and .dockerignore."""

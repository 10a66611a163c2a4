"""Shell scripts as typed statements: the parser, the syntax tree and command options."""

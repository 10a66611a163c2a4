"""What was said, token by token: the message graph, its files, and what is made of them."""

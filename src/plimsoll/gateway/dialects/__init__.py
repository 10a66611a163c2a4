"""The wire formats that agents speak: Chat Completions, Messages, Responses."""

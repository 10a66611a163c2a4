"""The rules: admission, batching, retries and stragglers."""

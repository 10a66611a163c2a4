"""What tasks fetch, staged once on storage so that sandboxes without a network work."""

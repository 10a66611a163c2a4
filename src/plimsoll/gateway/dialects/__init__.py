"""The wire formats that agents speak, one file each."""

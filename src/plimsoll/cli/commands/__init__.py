"""The commands, one thin file each. Their modules import only click at the top."""

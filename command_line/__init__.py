"""The command: one file a noun, everything heavy imported inside the command that needs it."""

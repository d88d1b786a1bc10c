"""The command line: one file per command, which imports what it needs only when it runs."""

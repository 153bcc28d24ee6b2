"""Runs Python functions that nobody has read, in boxes that see nothing of the host."""

"""Choosing workers by simulating an earlier batch on all that could be chosen."""

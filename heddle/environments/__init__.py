"""Kinds of tasks: math, code, search, and the user's own."""

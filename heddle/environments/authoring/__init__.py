"""Writes the task files and the corpus that ship with Heddle: ``python -m heddle.environments.authoring``.

Every generator is a pure function of its seed, so the files can be written again, byte for byte.
"""

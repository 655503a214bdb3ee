"""What runs in the sandbox's own processes: the supervisor and, forked from it, the program.

These modules are started by ``python -I -S -B`` as the top-level package ``inside``, so they import each
other relatively, nothing else of Heddle, and only those parts of the standard library that load in
milliseconds: every tool call pays for them.
"""

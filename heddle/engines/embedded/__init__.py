"""The embedded engine: llama.cpp's HTTP server in one process per worker, on the CPU.

``server`` is the process, ``launcher`` starts and stops it, ``adapter`` speaks its protocol, ``model``
brings the weights, ``streamable`` prepares them. Nothing is imported here: the server process pays for
every import.
"""

KEY_VARIABLE = "HEDDLE_ENGINE_KEY"
"""Environment variable in which the launcher hands a server the key that its clients must present."""

"""The agent loop: one coroutine per trajectory."""

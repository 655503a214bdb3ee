"""The Tool Manager, the sandbox, and tool backends."""

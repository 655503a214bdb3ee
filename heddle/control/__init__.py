"""The control plane: events in, commands out. Pure."""

"""Inference engines: processes, their supervision, and the adapters that talk to them."""

"""Heddle orchestrates agentic RL rollouts: batches of prompts in, finished trajectories out."""

__version__ = "0.1.0"

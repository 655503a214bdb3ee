"""The journal of every step, and what finished trajectories are exported as."""

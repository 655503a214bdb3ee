"""When: the order in which waiting trajectories get a worker's slots."""

"""How many tokens a trajectory has still to generate."""

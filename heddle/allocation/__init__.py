"""How: which workers, of which parallel degree, the budget is made into."""

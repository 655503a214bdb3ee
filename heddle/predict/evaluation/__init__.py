"""How good predictors are: recordings played in order, and what was said scored against the end."""

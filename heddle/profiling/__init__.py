"""Measures a live engine: step times by parallel degree and batch, for the planner.

Works through the ``Engine`` port and a launcher, hence on every engine that Heddle can start. The result is
the table that ``heddle.planning.profile_csv`` reads.
"""

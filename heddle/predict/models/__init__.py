"""Models that see more than counts: trained offline, served by a process of their own.

Nothing in the control plane imports this package. What a model says reaches ``progressive`` as the event
``LengthPredicted``.
"""

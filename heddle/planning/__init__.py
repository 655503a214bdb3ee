"""What the planners share: the profile, what a group costs, what a plan is, and the compiled inner loops.

Placement and allocation import this package; it imports neither, nor the control plane. It is pure: files
are read by callers (only the table shipped with the package is read here), time is a function passed in,
randomness a seed.

numba is imported by ``heddle.planning.kernels`` and what builds on it, never by ``profile``,
``profile_csv``, ``shipped``, ``plan`` or ``hedge``: reading a profile or describing a plan stays quick.
"""

"""Inner loops compiled by numba. Plain functions of arrays and numbers, called by the planners only.

The first call in a fresh installation compiles (seconds); the machine code is kept beside the source, so that
later processes load it in milliseconds. That cache notices a change in a function's own file alone, hence a
kernel calls only kernels of its own module.
"""

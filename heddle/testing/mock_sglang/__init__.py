"""An SGLang server without a model.

``settings`` is what it was started with, ``bodies`` reads requests, ``model`` samples, ``cache`` is the
prefix cache, ``scheduler`` decides what each step computes, ``requests`` is one request's state, ``replies``
is what clients see of it, ``frontend`` is between HTTP and the scheduler, ``server`` and ``controls`` are
HTTP, ``reports`` is what the server says of itself, ``faults`` is what goes wrong.
"""

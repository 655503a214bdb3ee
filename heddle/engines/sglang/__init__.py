"""SGLang as an engine: an adapter to a server that runs, wherever it came from.

``protocol`` is the wire, ``stream`` reads and accounts for a generation's events, ``client`` is HTTP with
bounds, ``facts`` is what a server says of itself, ``adapter`` is the ``Engine``. Written against SGLang
0.5.23; older servers are met with fall-backs where one request has another name there.
"""

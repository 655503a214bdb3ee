"""A store of KV pages that SGLang servers share, whatever their tensor-parallel sizes. It runs inside SGLang.

``heads`` cuts a page by its KV heads, ``files`` keeps the pieces in a memory file system, ``hicache`` is the
class that SGLang loads (``--hicache-storage-backend dynamic``). The package imports the standard library,
numpy and, in ``hicache``, SGLang's own torch; nothing else of Heddle, which SGLang's environment need not
have. Imports are relative, so that the package works under any name.
"""

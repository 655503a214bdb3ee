"""The engine process: ``python -m heddle.engines.embedded.server``, one per worker.

Contract with its launcher:

- the launcher keeps our standard input open; its end of file means that the launcher is gone, and this
  process ends. On Linux the kernel also kills it when its parent dies, even before the model is loaded;
- once the server answers, one line of JSON (``{"url": ...}``) is written to standard output. Everything
  else, llama.cpp's own messages included, goes to standard error, which is the worker's log;
- SIGTERM and SIGINT end it at once: there is no state worth saving;
- clients present the key found in ``HEDDLE_ENGINE_KEY``, because a web page may reach loopback too.

Imports stay light: the process is started for every worker and after every crash.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

import xllamacpp

from heddle.engines.embedded import KEY_VARIABLE
from heddle.signals import end_with_parent

PREFILL_CHUNK_TOKENS = 64
"""Tokens of a prompt computed between two steps of the other slots, and before an abort is noticed."""

SLOT_PROMPT_SIMILARITY = 0.5
"""Share of a prompt that must match a slot to prefer it; lower values send everything that shares a
system prompt to one slot."""


def main(argv: list[str] | None = None) -> None:
    """Serve until told to end, or until the parent is gone."""
    options = _parse(argv)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent(options.parent_pid)
    report_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    server = xllamacpp.Server(_parameters(options))  # returns once the model is loaded
    os.write(report_fd, json.dumps({"url": server.listening_address}).encode() + b"\n")
    os.close(report_fd)
    threading.Event().wait()


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="heddle.engines.embedded.server")
    parser.add_argument("--model", required=True, help="path of a GGUF file")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--slot-context", type=int, required=True, help="tokens of context per slot")
    parser.add_argument("--cache-ram-mib", type=int, required=True, help="host memory for idle prefixes")
    parser.add_argument("--kv-dir", help="where slots are saved to and restored from")
    parser.add_argument("--parent-pid", type=int, required=True)
    return parser.parse_args(argv)


def _end_with_parent(parent_pid: int) -> None:
    """Tie this process to its parent by two means: a kernel signal (Linux) and the inherited pipe."""
    end_with_parent(parent_pid)
    threading.Thread(target=_exit_at_end_of_stdin, name="parent-watch", daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # not sys.exit: native threads must not delay the end


def _parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the kernel chooses: two servers started together cannot collide
    params.api_keys = [os.environ.pop(KEY_VARIABLE)]
    params.cors_origins = ""
    params.verbosity = 2  # warnings: the default writes several lines per request
    params.ui = False
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.endpoint_props = True

    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.slot_context  # the total: slots do not share their context
    if options.kv_dir is not None:
        params.slot_save_path = os.path.join(options.kv_dir, "")
    params.kv_unified = False
    params.cache_idle_slots = False
    params.cache_ram_mib = options.cache_ram_mib
    params.slot_prompt_similarity = SLOT_PROMPT_SIMILARITY
    params.n_batch = max(PREFILL_CHUNK_TOKENS, options.slots)
    params.n_ubatch = params.n_batch

    params.n_gpu_layers = 0
    params.fit_params = False
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads

    return params


if __name__ == "__main__":
    main()

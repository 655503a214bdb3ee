"""A process that behaves like a starting and stopping SGLang server, for tests of whoever starts it.

``python stand_in_server.py BEHAVIOUR SGLANG_ARGUMENTS...``; every request is printed. Behaviours:
``sound``; ``slow`` is not ready to the third question; ``old`` knows no ``/ready``; ``broken`` ends at once;
``deaf`` never gets ready; ``stubborn`` ignores SIGTERM; ``parent`` has a child that ignores it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys

from aiohttp import web


class StandIn:
    """Answers what is asked of a server that starts or stops."""

    def __init__(self, behaviour: str, tp_size: int) -> None:
        self._behaviour = behaviour
        self._tp_size = tp_size
        self._asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        print(request.method, request.path, await request.text(), flush=True)  # noqa: T201
        match request.path:
            case "/ready":
                self._asked += 1
                slow = self._behaviour == "slow" and self._asked < 3
                status = {"old": 404, "deaf": 503}.get(self._behaviour, 503 if slow else 200)
                return web.Response(status=status)
            case "/health_generate" | "/abort_request":
                return web.Response()
            case "/server_info":
                facts = {"tp_size": self._tp_size, "max_running_requests": 3, "max_total_num_tokens": 1000}
                return web.json_response(facts)
            case "/model_info":
                return web.json_response({"weight_version": "0"})
        return web.Response(status=404)


def main() -> None:
    behaviour = sys.argv[1]
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tp-size", type=int, required=True)
    options, _ = parser.parse_known_args(sys.argv[2:])
    if behaviour == "broken":
        sys.exit("no kernel image is available")
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "parent":
        ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", ignore])
        print("child", child.pid, flush=True)  # noqa: T201
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", StandIn(behaviour, options.tp_size).answer)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, handle_signals=behaviour != "stubborn")


if __name__ == "__main__":
    main()

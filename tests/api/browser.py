"""A headless Chromium driven over its own debugging protocol: enough to look at the dashboard."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)

START_S = 60.0
CALL_S = 30.0


def find_chromium() -> str | None:
    """The program, where there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self.problems: list[str] = []
        """Uncaught exceptions, console errors and violated policies, as they were reported."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; what the page reports meanwhile is kept in ``problems``."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        async with asyncio.timeout(CALL_S):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == self._last:
                    result: dict[str, Any] = message.get("result", {})
                    return result
                self._note(message)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression; promises are awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return answer["result"].get("value")

    async def wait_for(self, expression: str, timeout_s: float = 20.0) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(timeout_s):
            while not await self.evaluate(f"Boolean({expression})"):
                await asyncio.sleep(0.05)

    async def show(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await self.call("Page.navigate", url=url)

    async def screenshot(self, path: Path) -> None:
        """Keep what is to be seen."""
        answer = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"].get("exception", params)))
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.problems.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@asynccontextmanager
async def open_page(program: str, profile: Path) -> AsyncIterator[Page]:
    """A tab of a browser of its own, which is ended in any case."""
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _debugging_port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                tabs = [tab for tab in await response.json() if tab["type"] == "page"]
            async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        process.terminate()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _debugging_port(file: Path) -> int:
    async with asyncio.timeout(START_S):
        while not file.exists() or not file.read_text():  # noqa: ASYNC240  (written by the browser)
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])  # noqa: ASYNC240

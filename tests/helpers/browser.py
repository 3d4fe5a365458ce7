"""A real browser for the tests of the viewer: Debian's chromium, headless, driven through a pipe by
the DevTools protocol.  Needs nothing but the browser.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no browser is found; on Debian: apt-get install chromium"
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
_PATIENCE = 60.0
"""Seconds until something that should happen is taken to have failed."""


def browser_path() -> str | None:
    """Where the browser is, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A running browser; `open_browser` makes one."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result; events are kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._number:
                self.events.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            result: dict[str, Any] = answer["result"]
            return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, page: Path, hash_: str = "", *, width: int = 1500, height: int = 900) -> Tab:
        """A tab that shows the file, in a window of this size, once its scripts have run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        made = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self, made["sessionId"], target)
        for name in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{name}.enable")
        tab.size(width, height)
        tab.call("Page.navigate", url=page.resolve().as_uri() + hash_)
        tab.until("document.documentElement?.dataset.ready === 'yes'")
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self.browser.call(method, self.session, **given)

    def frame(self) -> Tab:
        """The page in the frame of this one, which runs in a process of its own."""
        self.call(
            "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True
        )
        end = time.monotonic() + _PATIENCE
        while not (made := self.events("Target.attachedToTarget")):
            assert time.monotonic() < end, "there is no frame"
            self.run("0")
            time.sleep(0.02)
        inner = Tab(self.browser, made[0]["sessionId"], made[0]["targetInfo"]["targetId"])
        inner.call("Runtime.enable")
        inner.call("Log.enable")
        return inner

    def events(self, method: str) -> list[dict[str, Any]]:
        """What the page reported under this name."""
        mine = (e for e in self.browser.events if e.get("sessionId") == self.session)
        return [event["params"] for event in mine if event["method"] == method]

    def size(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Say that the user prefers `"light"` or `"dark"`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait for a condition to hold."""
        end = time.monotonic() + _PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"not within {_PATIENCE} s: {condition}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The text of the first element that fits."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that fit and can be seen."""
        return list(
            self.run(
                f"[...document.querySelectorAll({json.dumps(selector)})]"
                ".filter((e) => e.checkVisibility()).map((e) => e.textContent)"
            )
        )

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of the first element that fits, once it is in sight."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def point(self, selector: str) -> None:
        """Move the mouse over an element."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, with the mouse."""
        x, y = self.middle(selector)
        given: dict[str, Any] = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", buttons=1, **given)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **given)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one point and let go at another."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1)

    def wheel(self, selector: str, turn: float) -> None:
        """Turn the wheel over an element; positive is towards the user."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=turn)

    def key(self, name: str) -> None:
        """Press a key: a character, or one of `KEYS`."""
        given: dict[str, Any] = {"key": name}
        if name in KEYS:
            given["windowsVirtualKeyCode"] = KEYS[name]
        else:
            given["text"] = name
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def write(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def faults(self) -> list[str]:
        """Everything that the page complained of: exceptions, errors of the console, refusals."""
        thrown = [str(each["exceptionDetails"]) for each in self.events("Runtime.exceptionThrown")]
        logged = [
            str(each["entry"]["text"])
            for each in self.events("Log.entryAdded")
            if each["entry"]["level"] == "error"
        ]
        return thrown + logged

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [str(each["request"]["url"]) for each in self.events("Network.requestWillBeSent")]


@contextmanager
def open_browser(profile: Path) -> Generator[Browser]:
    """Start the browser with an empty profile in the folder, and end it."""
    path = browser_path()
    assert path is not None, MISSING
    to_read, send = os.pipe()
    receive, to_write = os.pipe()
    inner = " ".join(["exec", f'"{path}"', '"$@"', f"3<&{to_read}", f"4>&{to_write}"])
    options = (
        "--headless=new",
        "--no-sandbox",  # tests in a container run as root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    )
    process = subprocess.Popen(
        ["bash", "-c", inner, "browser", *options],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(send, receive)
    finally:
        os.close(send)
        os.close(receive)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A headless Chromium that comes as a wheel (Qt WebEngine), for a look at a page that a test has written.

``python -m tests.browser page.html page.png 375 dark`` takes a picture of all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
ENVIRONMENT = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
FLAGS = "--disable-gpu --disable-background-networking --disable-component-update"
DARK = "--blink-settings=preferredColorScheme=0"
SETTLE_MILLISECONDS = 1000


@dataclass(frozen=True)
class Look:
    """What a browser has seen of a page.

    :param result: what the script came to.
    :param requests: every address that was asked for, the page's own first.
    :param console: what was said on the console.
    """

    result: Any
    requests: list[str]
    console: list[str]


def why_not() -> str | None:
    """Say why there is no browser, None where there is one."""
    tried = _python("-c", "import PySide6.QtWebEngineWidgets")
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else None


def look_at(page: Path, picture: Path, *, width: int, dark: bool = False, script: str = "null") -> Look:
    """Open a page in a window of this width, evaluate a script that gives JSON values, take a picture."""
    arguments = [str(page), str(picture), str(width), "dark" if dark else "light", script]
    done = _python("-m", "tests.browser", *arguments)
    if done.returncode:
        raise RuntimeError(f"the browser ended with code {done.returncode}:\n{done.stderr}")
    return Look(**json.loads(done.stdout.splitlines()[-1]))


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def _main(page: str, picture: str, width: str, scheme: str, script: str = "null") -> None:
    """Be the browser: print what :class:`Look` holds."""
    os.environ |= {**ENVIRONMENT, "QTWEBENGINE_CHROMIUM_FLAGS": f"{FLAGS} {DARK if scheme == 'dark' else ''}"}
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtWebEngineCore import (
        QWebEnginePage,
        QWebEngineProfile,
        QWebEngineSettings,
        QWebEngineUrlRequestInterceptor,
    )
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    seen: dict[str, Any] = {"requests": [], "console": []}

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
            seen["console"].append(message)

    class Requests(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, request: Any) -> None:
            seen["requests"].append(request.requestUrl().toString())

    app = QApplication([])
    profile, requests, view = QWebEngineProfile(), Requests(), QWebEngineView()
    profile.setUrlRequestInterceptor(requests)
    # Without it a local page could not reach the network, and an attempt would go unseen.
    profile.settings().setAttribute(QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls, True)
    shown = Page(profile, view)
    view.setPage(shown)
    view.resize(int(width), 800)
    view.show()

    def evaluate(loaded: bool) -> None:
        if not loaded:
            sys.exit(f"{page} could not be loaded")
        measured = f"JSON.stringify([document.documentElement.scrollHeight, ({script})])"
        shown.runJavaScript(measured, 0, grow)

    def grow(measured: str) -> None:
        height, seen["result"] = json.loads(measured)
        view.resize(int(width), height)
        QTimer.singleShot(SETTLE_MILLISECONDS, end)

    def end() -> None:
        view.grab().save(picture)
        print(json.dumps(seen))
        app.quit()

    view.loadFinished.connect(evaluate)
    view.load(QUrl.fromLocalFile(str(Path(page).absolute())))
    app.exec()


if __name__ == "__main__":
    _main(*sys.argv[1:])

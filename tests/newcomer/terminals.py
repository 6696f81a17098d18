"""The terminals of a newcomer, and the commands that a page gives for them."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.pages import blocks
from tests.system.local_airflow import kill_session

FAKE_URL = "http://127.0.0.1:8400"
"""The fake's, as the pages write it."""
COMMAND_SECONDS = 600.0
STOP_SECONDS = 20.0
"""After which one who waits presses Ctrl-C again."""
PRESSES = 9


class CommandError(AssertionError):
    """A command of a page failed; the text has its output."""


def commands_by_step(page: Path) -> dict[int, list[str]]:
    """Give the shell blocks of each numbered section of a page, as they stand."""
    steps: dict[int, list[str]] = {}
    text_by_line = {block.line: block.text for block in blocks("bash", pages=[page])}
    commands: list[str] = []
    for line, text in enumerate(page.read_text().splitlines(), start=1):
        heading = re.match(r"## (\d+)\. ", text)
        if heading:
            commands = []
            steps[int(heading[1])] = commands
        if line in text_by_line:
            commands.append(text_by_line[line])
    return steps


@dataclass
class StaysUp:
    """A command that goes on until Ctrl-C; its output is in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def wait_until(self, is_so: Callable[[], bool], seconds: float, condition: str) -> None:
        """Wait for what it does.

        :param condition: what it does, in words, for the error.
        :raises CommandError: if it ends by itself, or does not do it in time.
        """
        deadline = time.monotonic() + seconds
        while not is_so():
            has_ended = self.process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise CommandError(f"not so: {condition}:\n{self.output}")
            time.sleep(0.5)

    def interrupt(self) -> int:
        """Press Ctrl-C, which each process in the foreground gets, and wait until all have ended.

        Now and then a part of Airflow hangs at the first, and the page says to press it again.

        :return: how often it was pressed.
        :raises CommandError: if they do not end.
        """
        for press in range(1, PRESSES + 1):
            os.killpg(self.process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
                return press
        raise CommandError(f"it does not end:\n{self.output}")

    def kill(self) -> None:
        """End it, and all that it has started."""
        kill_session(self.process)


class Terminal:
    """A terminal: what one command exports, the next ones have.

    :param folder: holds what the terminal remembers.
    :param env: the environment of a new terminal.
    :param real: what stands for each text of the pages, such as a port that is free.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], real: Mapping[str, str]) -> None:
        folder.mkdir()
        self._folder = folder
        self._env = env
        self._real = real

    def run(self, commands: str, *, cwd: Path | None = None) -> str:
        """Run commands one after the other, and return their output.

        :raises CommandError: if one fails.
        """
        code, output = self.attempt(commands, cwd=cwd)
        if code:
            raise CommandError(f"code {code}:\n{commands}\n{output}")
        return output

    def attempt(self, commands: str, *, cwd: Path | None = None) -> tuple[int, str]:
        """Run commands up to the first that fails, and return the exit code and the output."""
        shell = self._shell(commands, subprocess.PIPE, cwd)
        try:
            output, _ = shell.communicate(timeout=COMMAND_SECONDS)
        finally:
            kill_session(shell)
        return shell.returncode, output.decode(errors="replace")

    def start(self, command: str) -> StaysUp:
        """Start a command that stays up."""
        earlier_logs = list(self._folder.glob("*.log"))
        log = self._folder / f"{len(earlier_logs)}.log"
        with log.open("wb") as output:
            process = self._shell(command, output)
        return StaysUp(process, log)

    def _shell(
        self,
        commands: str,
        stdout: int | IO[bytes],
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        for shown, real in self._real.items():
            commands = commands.replace(shown, real)
        exported = self._folder / "exported.sh"
        remembered = f". '{exported}'\n" if exported.exists() else ""
        return subprocess.Popen(
            ["bash", "-c", f"set -e\n{remembered}{commands}\nexport -p > '{exported}'\n"],
            cwd=cwd or self._env["HOME"],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

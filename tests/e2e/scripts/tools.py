"""
Runs the other scripts in the pod `tools`; called by `fixtures.tools`.

  serve                          the pod's first process: it stays, and buries who has no parent
  start NAME ENVIRON SCRIPT ...  begin one, with more variables (JSON); asked twice, it runs once
  result NAME SECONDS            its exit code, null if it runs on after SECONDS, and its output
  stop NAME                      end it at once, and all that it started
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPTS = Path(__file__).parent
PLACE = Path(tempfile.gettempdir(), "scripts")
LONGEST = 900
"""Seconds. Whatever runs for longer is of a test that has failed."""
TAIL = 20_000


def serve() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def start(name: str, environ: str, script: str, *arguments: str) -> None:
    place = PLACE / name
    try:
        place.mkdir(parents=True)
    except FileExistsError:  # the answer was lost, not the question
        return
    if os.fork():
        return
    # Detached: whoever started it may be cut off.
    os.setsid()
    (place / "group").write_text(str(os.getpid()))
    output = os.open(place / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        code = subprocess.run(
            [sys.executable, SCRIPTS / script, *arguments],
            env={**os.environ, **json.loads(environ)},
            timeout=LONGEST,
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"ended, because it ran for {LONGEST} s")
        code = 124
    partial = place / "code.partial"
    partial.write_text(str(code))
    partial.rename(place / "code")


def result(name: str, seconds: str) -> None:
    code, output = PLACE / name / "code", PLACE / name / "output"
    until = time.monotonic() + float(seconds)
    while not code.exists() and time.monotonic() < until:
        time.sleep(0.05)
    ended = int(code.read_text()) if code.exists() else None
    said = output.read_bytes() if output.exists() else b""
    print(json.dumps({"code": ended, "output": said[-TAIL:].decode(errors="replace")}))


def stop(name: str) -> None:
    group = int((PLACE / name / "group").read_text())
    try:
        while True:  # until they are buried, too: then nothing of it can happen any more
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.05)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["start", name, environ, script, *arguments]:
            start(name, environ, script, *arguments)
        case ["result", name, seconds]:
            result(name, seconds)
        case ["stop", name]:
            stop(name)
        case _:
            sys.exit(__doc__)

"""Every command on an imitated Windows: what it lacks is missing, what it does otherwise is done (``oracles/windows``).

Paths have drive letters and backslashes: here they are names of files in the working directory. That real Windows does
what is imitated, no test here can show.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
IMITATION = ROOT / "tests/oracles/windows"
COMMAND = [sys.executable, "-P", "-m", "hybrid"]
BREAK = 21  # SIGBREAK: Ctrl-Break
LOCAL, LEDGER, CONFIG = r"C:\models\small.gguf", r"C:\Users\me\ledger.sqlite", r"C:\Users\me\hybrid.toml"
PRICES, TRACE, IN, OUT = r"C:\Users\me\prices.toml", r"D:\trace.jsonl", r"D:\in.jsonl", r"D:\out.jsonl"

IMPORTED = """
import pkgutil, importlib, hybrid
names = [each.name for each in pkgutil.walk_packages(hybrid.__path__, "hybrid.") if not each.name.endswith("__main__")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # an extra that is not installed
        assert error.name in {"gguf", "torch", "tokenizers", "sklearn", "ot"}, (name, error)
print(*names)
"""

# Run as a module of the product, and that is what it is taken for.
LACKING = r"""
import os, pathlib, signal, socket, subprocess, sys, asyncio

def refusal(act, *args):
    try:
        act(*args)
    except Exception as error:
        return type(error).__name__

def missing(name):
    return refusal(__import__, name, globals())

assert (sys.platform, os.name) == ("win32", "nt")
modules = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")
assert {missing(name) for name in modules} == {"ModuleNotFoundError"}
for name in "geteuid getuid fork pread fchmod sched_getaffinity O_CLOEXEC O_NONBLOCK O_DIRECTORY O_NOFOLLOW".split():
    assert not hasattr(os, name), name
for name in "SIGHUP SIGUSR1 SIGKILL pthread_kill pthread_sigmask".split():
    assert not hasattr(signal, name), name
assert not hasattr(socket, "AF_UNIX") and hasattr(signal, "SIGBREAK") and not hasattr(os, "getpgid")
assert refusal(signal.signal, 1, signal.SIG_IGN) == "ValueError"
assert refusal(os.open, ".", os.O_RDONLY) == "PermissionError"
assert refusal(lambda: pathlib.Path("/proc/self/stat").read_text()) == "FileNotFoundError"
fd = os.open("text", os.O_RDWR | os.O_CREAT)
os.write(fd, b"a\nb\n")
path = pathlib.Path("text")
assert path.read_bytes() == b"a\r\nb\r\n"
assert (refusal(path.replace, "other"), refusal(path.unlink)) == ("PermissionError",) * 2
os.close(fd)
fd = os.open("binary", os.O_RDWR | os.O_CREAT | os.O_BINARY)
os.write(fd, b"a\n")
os.close(fd)
assert pathlib.Path("binary").read_bytes() == b"a\n"
path.write_text("é\n")
assert path.read_bytes() == b"\xe9\r\n"
assert [refusal(path.replace, "other") for _ in range(3)] == ["PermissionError", "PermissionError", None]
loop = asyncio.new_event_loop()
assert refusal(loop.add_signal_handler, 2, print) == refusal(asyncio.AbstractEventLoop().add_signal_handler, 2, print)
loop.close()
print("as Windows")
"""


class Windows:
    """A folder in which commands are run as on Windows. ``url``: the endpoint that its files name."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        homes = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CONFIG", "CACHE")}
        paths = os.pathsep.join(map(str, (IMITATION, ROOT)))
        # The first two renames of each process meet a virus scanner.
        self.env = kept | homes | {"PYTHONPATH": paths, "HOME": str(folder), "HYBRID_TEST_BUSY": "2"}

    def start(self, *words, **more):
        env = self.env | {"HYBRID_TEST_WITHOUT": "sklearn"}  # trees are fitted in C, and take ten seconds
        files = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        return subprocess.Popen([*COMMAND, *words], cwd=self.folder, env=env, **files)

    def run(self, *words, code=0, given=b""):
        with self.start(*words, stdin=subprocess.PIPE) as process:
            out, err = process.communicate(given)
        assert process.returncode == code, err.decode()
        return out.decode("cp1252"), err.decode("cp1252")

    def program(self, text):
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout

    def check_names(self):
        """Find no name that Windows does not take; a colon would make another stream of a file."""
        names = {part for path in self.folder.rglob("*") for part in path.relative_to(self.folder).parts}
        made = {name for name in names if not name.startswith(("C:\\", "D:\\"))}
        assert {"state", "cache"} <= made
        assert [name for name in made if re.search(r'[<>:"|?*\\]', name) or name.endswith((".", " "))] == []


@pytest.fixture(scope="module")
def windows(bundled, stub, tmp_path_factory):
    """A user's files: the configuration is what a folder without ACLs looks like here, writable by everybody."""
    found = Windows(tmp_path_factory.mktemp("windows"), stub.url)
    shutil.copy(bundled[0], found.folder / LOCAL)
    own = found.folder / "config/hybrid-llm/hybrid.toml"
    own.parent.mkdir(parents=True)
    own.write_text("max_tokens = 24\r\n")
    own.chmod(0o666)
    (found.folder / CONFIG).write_text(
        f"local = '{LOCAL}'\r\nledger = '{LEDGER}'\r\nprices = '{PRICES}'\r\ncloud = '{stub.url}'\r\n"
        'max_tokens = 48\r\npolicy = "kl"\r\n'
    )
    (found.folder / PRICES).write_text(
        f'[[price]]\r\nendpoint = "{stub.url}"\r\nmodel = "large"\r\nprompt = 1\r\ncached_prompt = 0.1\r\n'
        'completion = 4\r\nsource = "a test"\r\n'
    )
    return found


@pytest.mark.slow
def test_every_module_can_be_imported_where_what_windows_lacks_is_lacking(tmp_path):
    """What is imitated is as on Windows, too: else the tests below show nothing."""
    program = (
        f'exec(compile({LACKING!r}, "trial", "exec"), {{"__name__": "hybrid.trial", "__builtins__": __builtins__}})'
    )
    told, names = Windows(tmp_path, "").program(f"{program}\n{IMPORTED}").splitlines()
    assert told == "as Windows"
    files = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "hybrid").rglob("*.py"))
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files if file.name != "__main__"}
    assert {"hybrid.spend.ledger", "hybrid.cli.ask"} <= modules
    assert {"hybrid", *names.split()} == modules


@pytest.mark.slow
def test_a_question_is_answered_and_charged_with_every_path_of_windows(windows):
    windows.run("budget", "set", "--ledger", LEDGER, "--total", "20")
    out, _ = windows.run("ask", "--config", CONFIG, "--trace", TRACE, "What is 47 + 86?")
    assert out.endswith("Answer: 133.\r\n")
    events = [json.loads(line) for line in (windows.folder / TRACE).read_bytes().splitlines()]
    assert {"trace"} == events[0].keys()
    assert "started" in [each.get("event") for each in events]
    shown = json.loads(windows.run("budget", "show", "--ledger", LEDGER, "--json")[0])
    [total] = [each for each in shown["caps"] if each["level"] == "total"]
    assert total["cap_nanousd"] == 20 * 10**9
    assert total["spent_nanousd"] > 0
    # Without --config the user's own file is read, whoever may write it: it allows 24 tokens.
    out, _ = windows.run("ask", "--offline", "--local", LOCAL, "--json", "What is 47 + 86?")
    assert json.loads(out)["usage"]["local_tokens"] == 24


@pytest.mark.slow
def test_a_chat_reads_the_lines_of_windows(windows):
    out, err = windows.run("chat", "--config", CONFIG, given=b"What is 47 + 86?\r\n/clear\r\nWhat is 12 + 30?\r\n")
    assert out.endswith("Answer: 42.\r\n")
    assert "Answer: 133." in out
    assert "a new conversation" in err


def batch(windows, *flags):
    return ("batch", IN, OUT, "--config", CONFIG, "--parallel", "2", *flags)


@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_and_its_lines_are_put_in_place(windows):
    """What was asked again is appended, and the sorted file takes OUT's place, where no open file can be."""
    questions = [f"What is {12 + 7 * i} + {91 - 2 * i}?" for i in range(8)]
    asked = [*map(json.dumps, questions), '{"prompt": ""}']
    (windows.folder / IN).write_bytes("\r\n".join(asked).encode())
    out, deadline = windows.folder / OUT, time.monotonic() + 90
    process = windows.start(*batch(windows))
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    _, err = process.communicate()
    kept = out.read_bytes().rpartition(b"\n")[0]
    assert kept.count(b"\n") >= 1, err.decode()
    summary = json.loads(windows.run(*batch(windows, "--json"), code=5)[0])
    assert summary["kept"] >= 2
    whole = out.read_bytes()
    assert whole.startswith(kept)
    assert b"\r" not in whole
    windows.run(*batch(windows, "--again", "failed", "--sort"), code=5)
    found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [each["line"] for each in found] == list(range(1, 10))
    assert ["error" in each for each in found] == [False] * 8 + [True]
    left = {path.name for path in windows.folder.iterdir() if path.name.startswith(OUT)}
    assert left <= {OUT, f"{OUT}.lock", f"{OUT}.sorting.lock"}, "Windows removes the locks"
    windows.check_names()


@pytest.mark.slow
def test_the_endpoint_answers_and_ctrl_break_ends_it(windows):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = windows.folder / "said.txt"
    with said.open("wb") as file:
        serving = windows.start("serve", "--config", CONFIG, "--port", port, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 90
        while "hybrid serves" not in said.read_text():
            assert time.monotonic() < deadline
            assert serving.poll() is None, said.read_text()
            time.sleep(0.02)
        url = re.search(r"http://127\.0\.0\.1:\d+", said.read_text())[0]
        asked = {"model": "hybrid", "messages": [{"role": "user", "content": "What is 47 + 86?"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=90).json()
        assert answer["choices"][0]["message"]["content"].endswith("133.")
        assert "another --port may be free" in windows.run("serve", "--config", CONFIG, "--port", port, code=2)[1]
        serving.send_signal(BREAK)
        assert serving.wait(90) == 0, said.read_text()
    finally:
        serving.kill()
        serving.wait()


@pytest.mark.slow
def test_a_calibration_is_bought_kept_and_forgotten(windows):
    words = ("calibrate", "--config", CONFIG, "--local", LOCAL)
    assert "10 questions" in windows.run(*words, "--n", "10", "--max-tokens", "12", "--report", r"D:\pair.html")[0]
    assert b"<svg" in (windows.folder / r"D:\pair.html").read_bytes()
    assert "20 bought texts" in windows.run(*words, "--forget")[0]
    windows.check_names()


assert signal.SIGTTIN == BREAK  # the number is free here

"""Take ``examples/monitor.png``: the monitor of a real ``hybrid serve`` over the bundled pair.

Needs Debian's Chromium and a Python with Playwright, and talks to hybrid as any client does:

    python tests/end_to_end/server_environments.py browser
    .../servers/browser/bin/python examples/picture_of_the_monitor/picture.py --hybrid "$(which hybrid)"
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

QUESTIONS = (
    ("hybrid", "Tom has 53 apples. Tom buys 8 more. Tom gives away 7. How many apples does Tom have now?"),
    ("hybrid:doubt", "Integrate 30x^5 + 20x^3 + 6x."),
    ("hybrid", "Set a tea timer for 12 minutes and 30 seconds."),
    ("hybrid:local", "Differentiate 7x^4 - 3x^2 + 9x."),
    ("hybrid:kl", "Sort 42 17 99 23 68 12 55."),
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
OUT = Path(__file__).parent.parent / "monitor.png"


def ask(url: str, model: str, question: str) -> None:
    """Ask as an OpenAI client does."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "seed": 3}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310  (our own)
    with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310
        print(json.load(reply)["choices"][0]["message"]["content"])


def picture(url: str, out: Path, scheme: str) -> None:
    """Open the page, choose a token that the cloud wrote, and take the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 820}, color_scheme=scheme)
        page.goto(url)
        page.wait_for_selector("#text > span.cloud")
        for token in page.locator("#text > span.cloud").all():
            token.focus()
            if "turned down" in page.locator("#detail").inner_text():
                break
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)
        page.screenshot(path=out)
        browser.close()


def main() -> None:
    """Serve, ask, look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hybrid", default="hybrid", help="the command")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--dark", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--port", "0", "--monitor", "--price", "1/0.1/4", "--cap", "0.01", "--ledger", f"{folder}/ledger"]
        command = [*chosen.hybrid.split(), "serve", *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        server = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
        )
        try:
            said = next(line for line in server.stderr if "serves" in line)
            url = re.search(r"monitor (http://[^ ]+?)/?$", said)[1]
            for model, question in QUESTIONS:
                ask(url, model, question)
            picture(url, chosen.out, "dark" if chosen.dark else "light")
        finally:
            server.terminate()
            server.communicate(timeout=30)
    print(f"{chosen.out}: {chosen.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()

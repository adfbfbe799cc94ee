"""Record anew what real clients send: one file a request below ``golden``, without what belongs to one machine.

    python tests/serve/record_clients.py        wants the environments openai2 and openai3 (server_environments.py)

What each must be answered with is written by the rules in ``expected``, which are those of hybrid/serve/MANUAL.md, and
is then held against the endpoint by ``test_golden.py``. Files without a version were written by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "oracles"), str(HERE.parent / "end_to_end")]

from canned_chat import canned_chat  # noqa: E402
from server_environments import python_of  # noqa: E402

GOLDEN = HERE / "golden"
KEPT = ("accept", "authorization", "content-type", "user-agent", "x-stainless-retry-count", "x-api-key")
ELSEWHERE = ("/v1/responses", "/v1/embeddings")


def expected(path, body):
    """Return what a request must be answered with where no cloud has a chat route."""
    if path in ELSEWHERE:
        return {"status": 404, "code": "unknown_route"}
    if body and body["model"] != "hybrid":
        return {"status": 404, "code": "model_not_found"}
    if body and (body.get("tools") or body.get("response_format")):
        return {"status": 400, "code": "unsupported_parameter"}
    return {"status": 200}


def main():
    for old in GOLDEN.glob("openai*.json"):
        old.unlink()
    for environment in ("openai2", "openai3"):
        python = python_of(environment)
        ask = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        version = subprocess.run(
            [python, "-c", ask, "openai"], capture_output=True, text=True, check=True
        ).stdout.strip()
        calls = subprocess.run([python, HERE / "client_calls.py", "--list"], capture_output=True, text=True, check=True)
        seen = set()
        for name in json.loads(calls.stdout):
            with canned_chat() as server:
                subprocess.run([python, HERE / "client_calls.py", server.url, name], capture_output=True, check=True)
            for method, path, headers, body in server.requests:
                if (text := json.dumps([path, body], sort_keys=True)) in seen:
                    continue
                seen.add(text)
                told = {key.lower(): value for key, value in headers.items() if key.lower() in KEPT}
                number = len(list(GOLDEN.glob(f"{environment}-{name}*.json")))
                file = GOLDEN / f"{environment}-{name}{f'-{number}' if number else ''}.json"
                record = {"call": name, "client": "openai", "version": version, "method": method, "path": path}
                record |= {"headers": told, "body": body, "expect": expected(path, body)}
                file.write_text(json.dumps(record, indent=1) + "\n")
        print(environment, version, len(seen), "requests")


if __name__ == "__main__":
    main()

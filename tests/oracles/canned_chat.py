"""A chat service that says what is asked of its shape and nothing else, written from OpenAI's documents alone.

It keeps every request. Asked for a tool it calls the first one with fitting arguments, asked for a JSON schema it fills
it, else it greets; whole or in events, with usage where it is asked for. No model, no package.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GREETING = "Hello there."
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def filled(schema, within=None):
    """Return a value that a JSON schema allows."""
    within = within or schema
    if "$ref" in schema:
        return filled(within["$defs"][schema["$ref"].rpartition("/")[2]], within)
    if "anyOf" in schema:
        return filled(schema["anyOf"][0], within)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: filled(each, within) for name, each in schema.get("properties", {}).items()}
    return {"string": "Ann", "integer": 7, "number": 7.0, "boolean": True, "array": [], "null": None}.get(kind, "Ann")


def message_for(body):
    """Return what the assistant says, and why it ends."""
    said = any(turn.get("role") == "tool" for turn in body["messages"])
    if body.get("tools") and not said:
        function = body["tools"][0]["function"]
        called = {"name": function["name"], "arguments": json.dumps(filled(function.get("parameters", {})))}
        call = {"id": "call_1", "type": "function", "function": called}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return {"role": "assistant", "content": json.dumps(filled(form["json_schema"]["schema"]))}, "stop"
    return {"role": "assistant", "content": GREETING}, "stop"


def reply_to(body):
    """Return a whole reply, or the list of its events."""
    message, why = message_for(body)
    head = {"id": "chatcmpl-canned", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        choices = [
            {"index": i, "message": message, "logprobs": None, "finish_reason": why} for i in range(body.get("n") or 1)
        ]
        return {**head, "object": "chat.completion", "choices": choices, "usage": USAGE}
    delta = dict(message)
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": 0, **call} for call in delta["tool_calls"]]
    parts = [{"index": 0, "delta": delta, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": why}]
    events = [{**head, "object": "chat.completion.chunk", "choices": [part]} for part in parts]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    return events


class CannedChat(ThreadingHTTPServer):
    """``requests``: method, path, headers and body of each, in order. ``status``: that of every answer."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.status = 200

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        self._keep(None)
        self._json(
            200, {"object": "list", "data": [{"id": "canned", "object": "model", "created": 1, "owned_by": "x"}]}
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._keep(body)
        if self.server.status != 200:
            error = {"message": "no", "type": "x", "param": None, "code": "canned"}
            self._json(self.server.status, {"error": error})
        elif "messages" not in body:
            self._json(404, {"error": {"message": "no such route", "type": "x", "param": None, "code": None}})
        elif isinstance(reply := reply_to(body), dict):
            self._json(200, reply)
        else:
            raw = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in reply) + b"data: [DONE]\n\n"
            self._send(200, "text/event-stream", raw)

    def _keep(self, body):
        self.server.requests.append((self.command, self.path, dict(self.headers), body))

    def _json(self, status, data):
        self._send(status, "application/json", json.dumps(data).encode())

    def _send(self, status, kind, raw):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def canned_chat():
    """Run one."""
    server = CannedChat()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

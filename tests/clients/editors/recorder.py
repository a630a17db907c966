"""Forwards the calls of an editor to a server, and keeps them in the order in which they come."""

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# An editor sends its next call some 100 ms after an answer.
QUIET_SECONDS, WAIT_SECONDS = 1.0, 30.0
FORWARDED = ("content-type", "accept", "authorization")


class Recorder:
    """A proxy on a free port. `calls` are requests with the status and the text of their answers."""

    def __init__(self, server):
        self.target = urlsplit(server).netloc
        self.calls, self.open_calls, self.changed_at = [], 0, time.monotonic()
        self.changed = threading.Condition()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def begin(self, call):
        """Adds a call that has no answer yet."""
        with self.changed:
            self.calls.append(call)
            self.note(1)

    def end(self, call, status, answer):
        """Adds the answer of a call."""
        with self.changed:
            call["status"], call["answer"] = status, answer
            self.note(-1)

    def note(self, opened):
        self.open_calls += opened
        self.changed_at = time.monotonic()
        self.changed.notify_all()

    def expect(self, what, found):
        """A function that waits for a later call for which `found` is true, and for the calls that follow it."""
        with self.changed:
            start = len(self.calls)
        return lambda: self.wait(what, found, start)

    def wait(self, what, found, start):
        """Waits until such a call has been answered, and no other call follows."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.changed:
            while True:
                now = time.monotonic()
                quiet = self.open_calls == 0 and now - self.changed_at >= QUIET_SECONDS
                if quiet and any(found(call) for call in self.calls[start:]):
                    return
                if now > deadline:
                    raise SystemExit(f"no call: {what}")
                self.changed.wait(0.1)

    def forward(self, method, path, body, headers):
        """The status, type and body of the server's answer."""
        connection = http.client.HTTPConnection(self.target, timeout=WAIT_SECONDS)
        sent = {name: value for name, value in headers.items() if name.lower() in FORWARDED}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = answer.status, answer.getheader("Content-Type", ""), answer.read()
        connection.close()
        return found


def handler(recorder):
    """The class of the proxy's HTTP handlers."""

    class Handler(BaseHTTPRequestHandler):
        def relay(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            call = {"method": self.command, "path": self.path, "body": json.loads(body) if body else None}
            recorder.begin(call)
            try:
                status, kind, answer = recorder.forward(self.command, self.path, body, self.headers)
            except OSError as error:
                status, kind, answer = 502, "text/plain", str(error).encode()
            recorder.end(call, status, answer.decode())
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = relay

        def log_message(self, *_):
            pass

    return Handler

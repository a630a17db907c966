"""An HTTP client that takes little CPU time from the measured engine: it stores received bytes with their times, and parses them after
all answers have ended."""

import json
import selectors
import socket
import time
from dataclasses import dataclass, field

import h11

CHUNK_BYTES = 1 << 16


class NoAnswer(Exception):
    """A request got no answer, or not an event stream. `status` is the HTTP status, None without an answer."""

    def __init__(self, why, status=None):
        super().__init__(why)
        self.status = status


@dataclass
class Answer:
    """The answer to one request, in seconds of the monotonic clock."""

    # When the client began to send the requests.
    start: float
    # Received bytes with the times of their arrival.
    parts: list = field(default_factory=list)
    status: int | None = None

    def events(self, protocol):
        """Yields the arrival time and the JSON of each event."""
        rest = b""
        for when, data in self.parts:
            rest += self._body(protocol, data)
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    yield when, json.loads(line[5:])

    def _body(self, protocol, data):
        body = b""
        try:
            protocol.receive_data(data)
            while (event := protocol.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    break
        except h11.RemoteProtocolError as error:
            raise NoAnswer(f"the answer ended too early: {error}", self.status) from error
        if self.status not in (None, 200):
            raise NoAnswer(f"the answer has status {self.status}: {body[:300].decode(errors='replace')}", self.status)
        return body


def request(port, path, body):
    """The protocol state after a request, and the bytes of the request."""
    body, protocol = json.dumps(body).encode(), h11.Connection(our_role=h11.CLIENT)
    headers = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    sent = [h11.Request(method="POST", target=path, headers=list(headers.items())), h11.Data(data=body), h11.EndOfMessage()]
    return protocol, b"".join(protocol.send(event) for event in sent)


def ask(port, path, bodies, limit_s):
    """Sends all requests at once. Returns for each the start time and its `Answer.events`."""
    requests = [request(port, path, body) for body in bodies]
    start = time.monotonic()
    answers = [Answer(start) for _ in requests]
    with selectors.DefaultSelector() as waiting:
        try:
            for (_, sent), answer in zip(requests, answers):
                connection = socket.create_connection(("127.0.0.1", port), limit_s)
                waiting.register(connection, selectors.EVENT_READ, answer)
                connection.sendall(sent)
            _receive(waiting, start + limit_s)
        except OSError as error:
            raise NoAnswer(repr(error)) from error
        finally:
            for key in list(waiting.get_map().values()):
                key.fileobj.close()
    return [(start, answer.events(protocol)) for (protocol, _), answer in zip(requests, answers)]


def _receive(waiting, deadline):
    """Receives until the server has closed every connection."""
    while waiting.get_map():
        ready = waiting.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            raise NoAnswer("the time limit has passed")
        for key, _ in ready:
            data = key.fileobj.recv(CHUNK_BYTES)
            key.data.parts.append((time.monotonic(), data))
            if not data:
                waiting.unregister(key.fileobj)
                key.fileobj.close()

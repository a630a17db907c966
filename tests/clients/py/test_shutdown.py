"""Tests of SIGTERM while clients are served: running requests complete, and new ones are refused."""

import concurrent.futures
import json
import os
import signal

import openai
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect
from world import LONG, TIMEOUT_S, URL, World, openai_client, wait_until

TOKENS = 2000
ADDRESS = URL.replace("http://", "ws://") + "/v1/ws/generate"


class Shutdown(World):
    def tearDown(self):
        """The server is gone; the caller checks its exit code."""

    def connect(self):
        return connect(ADDRESS, open_timeout=TIMEOUT_S, close_timeout=TIMEOUT_S)

    def stream(self):
        return self.client.completions.create(
            model="any", prompt="Once upon a time", max_tokens=TOKENS, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )

    def read_to_the_end(self, socket):
        """Reads the only request on a WebSocket to its end, and checks that the server then closes the connection."""
        while not (frame := json.loads(socket.recv(timeout=TIMEOUT_S))).get("done"):
            self.assertNotIn("error", frame)
        self.check_going_away(socket)
        return frame["meta"]

    def check_going_away(self, socket):
        with self.assertRaises(ConnectionClosedOK) as closed:
            socket.recv(timeout=TIMEOUT_S)
        self.assertEqual(closed.exception.rcvd.code, 1001)

    def check_new_requests_are_refused(self):
        with self.assertRaises(openai.InternalServerError) as raised:
            self.client.completions.create(model="any", prompt="Hello")
        self.assertEqual((raised.exception.status_code, raised.exception.code), (503, "shutting_down"))

    def keep_busy(self):
        """Sends requests that run until they are aborted by id, so that the server cannot stop earlier."""
        with openai_client() as client:
            return client.completions.create(
                model="any", prompt="Hello", n=16, max_tokens=LONG, extra_body={"ignore_eos": True, "rid": "brake"}
            )

    def test_running_requests_end_by_themselves(self):
        with self.connect() as busy, self.connect() as idle, concurrent.futures.ThreadPoolExecutor() as threads:
            brake = threads.submit(self.keep_busy)
            self.wait_until_in_flight(16)
            stream = self.stream()
            next(stream)
            sampling = {"max_new_tokens": TOKENS, "ignore_eos": True}
            busy.send(json.dumps({"op": "generate", "rid": "last", "text": "Hello", "sampling_params": sampling}))
            self.wait_until_in_flight(18)
            self.assertEqual(self.http.get("/ready").status_code, 200)

            os.kill(int(os.environ["SOUFFLEUR_PID"]), signal.SIGTERM)
            # Both answers are read while they are generated, because the server disconnects clients that do not read.
            chunks, end = threads.submit(list, stream), threads.submit(self.read_to_the_end, busy)
            wait_until("the server is not ready", lambda: self.http.get("/ready").status_code == 503)
            self.assertEqual(self.http.get("/health").status_code, 200)
            self.check_new_requests_are_refused()
            self.check_going_away(idle)
            self.assertEqual(self.http.post("/abort_request", json={"rid": "brake"}).json(), {"aborted": 16})
            self.assertEqual({choice.finish_reason for choice in brake.result().choices}, {"abort"})

            *chunks, last = chunks.result()
            self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
            self.assertEqual(last.usage.completion_tokens, TOKENS)
            self.assertEqual(end.result()["finish_reason"], {"type": "length", "length": TOKENS})
            self.assertEqual(end.result()["completion_tokens"], TOKENS)

"""SIGTERM while clients are served: they get the rest of what they asked for, newcomers do not."""

import json
import os
import signal

import openai
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect
from world import PATIENCE_S, URL, World, wait_until

TOKENS = 3000


class Shutdown(World):
    def tearDown(self):
        """The server is gone; its exit code is looked at outside."""

    def test_running_requests_end_by_themselves(self):
        options = {"model": "any", "prompt": "Once upon a time", "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
        address = URL.replace("http://", "ws://") + "/v1/ws/generate"
        with connect(address) as busy, connect(address) as idle:
            stream = self.client.completions.create(stream=True, stream_options={"include_usage": True}, **options)
            next(stream)
            sampling = {"max_new_tokens": TOKENS, "ignore_eos": True}
            busy.send(json.dumps({"op": "generate", "rid": "last", "text": "Hello", "sampling_params": sampling}))
            busy.recv(timeout=PATIENCE_S)
            self.assertEqual(self.http.get("/ready").status_code, 200)

            os.kill(int(os.environ["SOUFFLEUR_PID"]), signal.SIGTERM)
            wait_until("it is not ready", lambda: self.http.get("/ready").status_code == 503)
            self.assertEqual(self.http.get("/health").status_code, 200)
            with self.assertRaises(openai.InternalServerError) as raised:
                self.client.completions.create(model="any", prompt="Hello")
            self.assertEqual((raised.exception.status_code, raised.exception.code), (503, "shutting_down"))
            with self.assertRaises(ConnectionClosedOK) as closed:
                idle.recv(timeout=PATIENCE_S)
            self.assertEqual(closed.exception.rcvd.code, 1001)

            *chunks, last = list(stream)
            self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
            self.assertEqual(last.usage.completion_tokens, TOKENS)
            while not (frame := json.loads(busy.recv(timeout=PATIENCE_S))).get("done"):
                self.assertNotIn("error", frame)
            self.assertEqual(frame["meta"]["completion_tokens"], TOKENS)
            with self.assertRaises(ConnectionClosedOK):
                busy.recv(timeout=PATIENCE_S)

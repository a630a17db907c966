"""Tests of the WebSocket `/v1/ws/generate`, with many requests on one connection."""

import contextlib
import json

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from world import LONG, TIMEOUT_S, URL, World, wait_until

STORY = "Once upon a time"
ADDRESS = URL.replace("http://", "ws://") + "/v1/ws/generate"


class WebSocket(World):
    def setUp(self):
        self.aborted = self.metrics("sglang:num_aborted_requests_total")

    @contextlib.contextmanager
    def connected(self):
        # A client with a bounded queue stops reading when it is full, and then closes only after its timeout.
        unbounded = {"max_queue": None}
        with connect(ADDRESS, open_timeout=TIMEOUT_S, close_timeout=TIMEOUT_S, **unbounded) as socket:
            self.socket = socket
            yield socket

    def send(self, **frame):
        self.socket.send(json.dumps(frame))

    def receive(self):
        return json.loads(self.socket.recv(timeout=TIMEOUT_S))

    def ask(self, rid, text=STORY, max_new_tokens=20, **sampling):
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}
        self.send(op="generate", rid=rid, text=text, sampling_params=sampling)

    def check_aborted(self, requests):
        wait_until(f"{requests} requests are cancelled", lambda: self.aborted_requests() >= requests)
        self.wait_until_idle()
        self.assertEqual(self.aborted_requests(), requests)

    def aborted_requests(self):
        return self.metrics("sglang:num_aborted_requests_total") - self.aborted

    def test_requests_on_one_connection_get_their_own_answers(self):
        prompts = {"a": STORY, "b": "Hello", "c": "Tell me", "d": STORY}
        expected = {
            rid: self.generate(text=text, sampling_params={"temperature": 0, "max_new_tokens": 20})
            for rid, text in prompts.items()
        }
        texts, tokens, ends = ({rid: initial for rid in prompts} for initial in ("", (), None))
        with self.connected():
            for rid, text in prompts.items():
                self.ask(rid, text)
            while None in ends.values():
                frame = self.receive()
                rid = frame["rid"]
                self.assertIsNone(ends[rid], "a frame follows the end")
                if frame.get("done"):
                    ends[rid] = frame["meta"]
                else:
                    texts[rid] += frame["delta"]
                    tokens[rid] += tuple(frame["output_ids"])
        for rid, answer in expected.items():
            self.assertEqual((texts[rid], list(tokens[rid])), (answer["text"], answer["output_ids"]))
            self.assertEqual(ends[rid]["finish_reason"], answer["meta_info"]["finish_reason"])
            self.assertEqual(ends[rid]["completion_tokens"], len(answer["output_ids"]))

    def test_an_abort_ends_one_request_and_others_continue(self):
        with self.connected():
            self.ask("long", max_new_tokens=LONG, ignore_eos=True)
            self.assertEqual(self.receive()["rid"], "long")
            self.ask("short", max_new_tokens=8)
            self.send(op="abort", rid="long")
            reasons = {}
            while len(reasons) < 2:
                frame = self.receive()
                if frame.get("done"):
                    reasons[frame["rid"]] = frame["meta"]["finish_reason"]["type"]
            self.assertEqual(reasons, {"long": "abort", "short": "length"})
            self.check_aborted(1)
            # The request id can be used again.
            self.ask("long", max_new_tokens=1)
            self.assertEqual(self.receive()["rid"], "long")

    def test_pings_of_both_kinds_are_answered(self):
        with self.connected() as socket:
            self.send(op="ping")
            self.assertEqual(self.receive(), {"op": "pong"})
            self.assertTrue(socket.ping(b"are you there").wait(TIMEOUT_S))

    def test_invalid_frames_get_errors_and_the_connection_stays_open(self):
        with self.connected() as socket:
            for frame, rid, param in (
                ("{", None, None),
                ("[]", None, None),
                ('{"rid": "x"}', "x", "op"),
                ('{"op": "sing", "rid": "x"}', "x", "op"),
                ('{"op": "abort"}', None, "rid"),
                ('{"op": "generate", "rid": "x"}', "x", "text"),
                ('{"op": "generate", "rid": "x", "text": "a", "sampling_params": {"n": 0}}', "x", "n"),
            ):
                socket.send(frame)
                answer = self.receive()
                self.assertEqual((answer["rid"], answer["error"]["param"]), (rid, param), answer)
                self.assertEqual(answer["error"]["type"], "invalid_request_error")
            socket.send(b"\x00\x01")
            self.assertIn("binary", self.receive()["error"]["message"])
            self.send(op="ping")
            self.assertEqual(self.receive(), {"op": "pong"})

    def test_a_request_id_in_use_is_refused(self):
        with self.connected():
            self.ask("twice", max_new_tokens=LONG, ignore_eos=True)
            self.receive()
            self.ask("twice")
            while "error" not in (frame := self.receive()):
                self.assertNotIn("done", frame)
            self.assertEqual((frame["rid"], frame["error"]["code"]), ("twice", "duplicate_request"))
        self.check_aborted(1)

    def test_a_closed_connection_cancels_all_of_its_requests(self):
        with self.connected():
            for index in range(6):
                self.ask(f"request {index}", max_new_tokens=LONG, ignore_eos=True)
            self.wait_until_running(6)
        self.check_aborted(6)

    def test_a_connection_that_breaks_cancels_all_of_its_requests(self):
        with self.connected() as socket:
            for index in range(3):
                self.ask(f"request {index}", max_new_tokens=LONG, ignore_eos=True)
            self.wait_until_running(3)
            # No closing handshake.
            socket.socket.shutdown(2)
            self.check_aborted(3)

    def test_a_page_of_another_site_may_not_connect(self):
        with self.assertRaises(InvalidStatus) as raised:
            connect(ADDRESS, open_timeout=TIMEOUT_S, origin="https://elsewhere.example")
        self.assertEqual(raised.exception.response.status_code, 403)

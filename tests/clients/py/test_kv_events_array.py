"""Tests of KV events in array encoding, as llm-d's reader decodes them, with a subscriber that binds the socket."""

import msgspec
import zmq

from test_kv_events import block_ids
from world import TIMEOUT_S, World


class KvEventArrays(World):
    def test_a_prompt_is_published_in_array_encoding(self):
        info = self.http.get("/server_info").json()["kv_events"]
        context = zmq.Context()
        self.addCleanup(context.destroy, linger=0)
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        socket.bind(f"tcp://127.0.0.1:{info['endpoint_port_base']}")
        self.assertEqual(info["endpoint_host"], "127.0.0.1")
        tokens = [token for token in range(20, 84)]
        seed = 0
        stored = None
        while stored is None:
            # The server connects at some later time, and events published before that do not reach this subscriber.
            seed += 1
            prompt = [seed + 10, *tokens]
            self.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})
            while socket.poll(200):
                topic, _, payload = socket.recv_multipart()
                self.assertEqual(topic, b"kv@pod@model")
                _, events, rank = msgspec.msgpack.decode(payload)
                self.assertEqual(rank, 0)
                for event in events:
                    if event[0] == "BlockStored" and event[3][0] == prompt[0]:
                        stored = event
            self.assertLess(seed, 150)
        ids = block_ids(prompt, 16)
        self.assertEqual(
            stored, ["BlockStored", ids[: len(stored[1])], None, prompt[: 16 * len(stored[1])], 16, None, "GPU", None, None]
        )

"""Tests of KV events over Unix sockets, received with libzmq."""

import os
import stat
import struct

import msgspec
import zmq

from test_kv_events import END_OF_REPLAY, BlockStored, EventBatch, block_ids
from world import TIMEOUT_S, World


class KvEventsOverUnixSockets(World):
    def test_events_come_over_sockets_that_only_the_user_can_open(self):
        info = self.http.get("/server_info").json()["kv_events"]
        self.assertEqual(info["endpoint_port_base"], 0)
        self.assertNotIn("replay_endpoint_port_base", info)
        for endpoint in [info["endpoint_host"], info["replay_endpoint"]]:
            mode = os.stat(endpoint.removeprefix("ipc://")).st_mode
            self.assertTrue(stat.S_ISSOCK(mode))
            self.assertEqual(stat.S_IMODE(mode), 0o600)
        context = zmq.Context()
        self.addCleanup(context.destroy, linger=0)
        tokens = list(range(20, 84))
        self.generate(input_ids=tokens, sampling_params={"max_new_tokens": 1})
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        socket.connect(info["replay_endpoint"])
        stored = {}
        while not stored:
            socket.send_multipart([b"", struct.pack(">Q", 0)])
            while True:
                empty, topic, seq, payload = socket.recv_multipart()
                self.assertEqual(empty, b"")
                if seq == END_OF_REPLAY:
                    break
                self.assertEqual(topic, b"kv")
                batch = msgspec.msgpack.decode(payload, type=EventBatch)
                events = [event for event in batch.events if isinstance(event, BlockStored)]
                stored.update({event.token_ids[0]: event for event in events})
        ids = block_ids(tokens, 16)
        self.assertEqual(stored[20].block_hashes, ids[: len(stored[20].block_hashes)])
        # A subscriber receives only events that are published after its subscription has arrived.
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")
        subscriber.connect(info["endpoint_host"])
        for first in range(100, 250):
            self.generate(input_ids=[first, *tokens], sampling_params={"max_new_tokens": 1})
            if subscriber.poll(200):
                self.assertEqual(subscriber.recv_multipart()[0], b"kv")
                return
        self.fail("the subscriber received no event")

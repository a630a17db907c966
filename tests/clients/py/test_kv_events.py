"""Tests of KV events, received with libzmq and decoded as the events that SGLang publishes."""

import hashlib
import itertools
import struct
from typing import Optional, Union

import msgspec
import zmq

from world import TIMEOUT_S, World, wait_until

END_OF_REPLAY = struct.pack(">q", -1)


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None
    cache_salt: Optional[str] = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    attn_dp_rank: Optional[int] = None


def block_ids(tokens, block_size):
    """The ids of a prompt's blocks, as SGLang hashes them."""
    ids, before = [], b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = tokens[start : start + block_size]
        before = hashlib.sha256(before + struct.pack(f"<{block_size}I", *block)).digest()
        ids.append(struct.unpack(">q", before[:8])[0])
    return ids


class KvEvents(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.info = cls.http.get("/server_info").json()["kv_events"]
        cls.context = zmq.Context()
        cls.addClassCleanup(cls.context.destroy, linger=0)

    def connect(self, kind, port):
        socket = self.context.socket(kind)
        self.addCleanup(socket.close, linger=0)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 100)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_S * 1000)
        socket.connect(f"tcp://127.0.0.1:{port}")
        return socket

    def subscribe(self, topic):
        socket = self.connect(zmq.SUB, self.info["endpoint_port_base"])
        socket.setsockopt(zmq.SUBSCRIBE, topic)
        return socket

    def message(self, frames):
        topic, seq, payload = frames
        self.assertEqual(topic, self.info["topic"].encode())
        return struct.unpack(">q", seq)[0], msgspec.msgpack.decode(payload, type=EventBatch)

    def replay(self, first, kind=zmq.DEALER):
        """Requests a replay from batch `first` on, and returns the batches."""
        with self.connect(kind, self.info["replay_endpoint_port_base"]) as socket:
            question = struct.pack(">Q", first)
            socket.send_multipart([b"", question] if kind == zmq.DEALER else [question])
            batches = {}
            while True:
                frames = socket.recv_multipart()
                if kind == zmq.DEALER:
                    self.assertEqual(frames.pop(0), b"")
                if frames[1] == END_OF_REPLAY:
                    self.assertEqual(frames, [b"", END_OF_REPLAY, b""])
                    return batches
                seq, batch = self.message(frames)
                batches[seq] = batch
                if kind == zmq.REQ:
                    # A REQ socket receives one answer per request.
                    return batches

    def blocks(self, batches):
        """The blocks of a reader that has applied all batches, by block id."""
        known = {}
        for seq in sorted(batches):
            batch = batches[seq]
            self.assertEqual(batch.attn_dp_rank, 0)
            for event in batch.events:
                if isinstance(event, AllBlocksCleared):
                    known.clear()
                    continue
                self.assertEqual(event.medium, "GPU")
                if isinstance(event, BlockRemoved):
                    for block in event.block_hashes:
                        del known[block]
                    continue
                size = event.block_size
                self.assertEqual(size, self.info["block_size"])
                self.assertEqual(len(event.token_ids), size * len(event.block_hashes))
                parent = event.parent_block_hash
                for at, block in enumerate(event.block_hashes):
                    self.assertNotIn(block, known)
                    self.assertTrue(parent is None or parent in known)
                    known[block] = (parent, event.token_ids[at * size : (at + 1) * size])
                    parent = block
        return known

    def cache(self, tokens, **fields):
        self.generate(input_ids=tokens, sampling_params={"max_new_tokens": 1, "temperature": 0}, **fields)

    def prompt(self, seed, length=70):
        head = [10 + seed % 100, 10 + seed // 100]
        return head + [(seed * 31 + at * 7) % 200 + 10 for at in range(length - 2)]

    def wait_for_blocks(self, tokens):
        """Waits until the prompt's blocks are published, one step after the answer, and returns all batches."""
        expected = block_ids(tokens, self.info["block_size"])
        batches = {}

        def holds():
            batches.update(self.replay(max(batches, default=-1) + 1))
            return set(expected) <= self.blocks(batches).keys()

        wait_until(f"{len(expected)} blocks are published", holds)
        return batches

    def test_a_prompt_is_published_with_sglangs_block_ids(self):
        tokens = self.prompt(1)
        self.cache(tokens)
        known = self.blocks(self.wait_for_blocks(tokens))
        size, before = self.info["block_size"], None
        for at, block in enumerate(block_ids(tokens, size)):
            self.assertEqual(known[block], (before, tokens[at * size : (at + 1) * size]))
            before = block

    def test_a_prompt_with_a_shared_prefix_publishes_only_new_blocks(self):
        first = self.prompt(2)
        second = first[:40] + self.prompt(3)
        for tokens in (first, second):
            self.cache(tokens)
            self.wait_for_blocks(tokens)
        # A salt separates the blocks, and their events contain the salt.
        self.cache(first, cache_salt="s")

        def salted():
            events = [event for batch in self.replay(0).values() for event in batch.events]
            return any(getattr(event, "cache_salt", None) == "s" for event in events)

        wait_until("the salted blocks are published", salted)
        self.blocks(self.replay(0))

    def test_a_subscriber_finds_its_gap_and_fills_it(self):
        subscriber = self.subscribe(b"kv")
        other = self.subscribe(b"other")
        subscriber.setsockopt(zmq.RCVTIMEO, 50)
        batches, seeds = {}, itertools.count(1000)

        def receives_batch():
            # A subscription takes some time to arrive.
            self.cache(self.prompt(next(seeds)))
            try:
                seq, batch = self.message(subscriber.recv_multipart())
            except zmq.Again:
                return False
            batches[seq] = batch
            return True

        wait_until("the subscriber receives a batch", receives_batch)
        subscriber.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        (first,) = batches
        self.assertGreater(first, 0)
        tokens = self.prompt(4000)
        self.cache(tokens)
        wanted = set(block_ids(tokens, self.info["block_size"]))
        while not wanted <= {
            block for batch in batches.values() for event in batch.events for block in getattr(event, "block_hashes", [])
        }:
            next_seq, batch = self.message(subscriber.recv_multipart())
            self.assertEqual(next_seq, max(batches) + 1)
            batches[next_seq] = batch
        missed = self.replay(0)
        self.assertLessEqual(set(range(first)), missed.keys())
        self.assertLessEqual(wanted, self.blocks({**missed, **batches}).keys())
        with self.assertRaises(zmq.Again):
            other.recv_multipart(zmq.NOBLOCK)

    def test_a_flush_clears_all_published_blocks(self):
        tokens = self.prompt(5)
        self.cache(tokens)
        self.wait_for_blocks(tokens)
        self.wait_until_idle()
        flushed = self.http.post("/flush_cache")
        self.assertEqual(flushed.status_code, 200, flushed.text)
        wait_until("nothing is stored", lambda: self.blocks(self.replay(0)) == {})

    def test_a_req_socket_gets_an_answer_too(self):
        self.assertEqual(list(self.replay(0, zmq.REQ)), [0])

    def test_metrics_count_what_is_published(self):
        self.cache(self.prompt(6))
        self.wait_for_blocks(self.prompt(6))
        page = self.http.get("/metrics").text
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("souffleur_kv_event"))
        self.assertGreater(float(values["souffleur_kv_event_batches_total"]), 0)
        self.assertGreater(float(values['souffleur_kv_event_blocks_total{event="stored"}']), 0)
        self.assertEqual(float(values["souffleur_kv_event_lost_changes_total"]), 0)

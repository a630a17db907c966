"""Pictures for the tests of clients, and what a server with a tiny model that sees counts of them."""

import base64
import struct
import zlib

from world import World

WIDTH, HEIGHT = 40, 24
# The mark after each picture, in the vocabularies of tests/common/seeing_models.rs.
END = 287
# No more tokens than these open the assistant's turn.
ASSISTANT = ["<|im_start|>", *"assistant\n"]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(number):
    """A picture for each number, as a file's bytes."""
    rows = b""
    for y in range(HEIGHT):
        rows += b"\0"
        for x in range(WIDTH):
            rows += bytes(((6 * x + 17 * number) % 256, (10 * y + 5 * number) % 256, (x * y + number) % 256))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(number):
    return base64.b64encode(png(number)).decode()


def data_url(number):
    return f"data:image/png;base64,{encoded(number)}"


class Pictures(World):
    def n_encoded(self):
        return self.metrics("souffleur_images_encoded_total")

    def tokens(self, messages, **fields):
        answer = self.http.post("/tokenize", json={"messages": messages, **fields})
        self.assertEqual(answer.status_code, 200, answer.text)
        return answer.json()["tokens"]

    def up_to_pictures(self, messages):
        """The tokens up to the end of the last picture."""
        tokens = self.tokens(messages)
        return len(tokens) - tokens[::-1].index(END)

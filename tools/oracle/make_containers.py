"""Makes tests/fixtures/images/containers.json: one picture in files of many kinds, and one that differs by a level.

    python tools/oracle/make_containers.py [--out tests/fixtures/images/containers.json]

It needs Pillow, of the version in tools/oracle/images.txt. Each file is read again and compared with the picture.
"""

import argparse
import base64
import io
import json
import struct
import zlib
from pathlib import Path

from PIL import Image, ImageOps, PngImagePlugin

REPOSITORY = Path(__file__).resolve().parents[2]
# Whole blocks of the tests' models, so that nothing is scaled.
WIDTH, HEIGHT = 24, 16
# First column, first row, and the steps of each pass of an interlaced PNG (ISO/IEC 15948, 8.2).
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def colour(x, y):
    """One of 16 colours."""
    number = (x // 2 + 3 * (y // 2)) % 16
    return (number * 16 + 3, 255 - number * 11, (number * 37) % 256)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(rows, bits, interlaced=False):
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 2, 0, 0, interlaced)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def interlaced(picture):
    rows = b""
    for left, top, right, down in PASSES:
        for y in range(top, HEIGHT, down):
            pixels = [picture.getpixel((x, y)) for x in range(left, WIDTH, right)]
            rows += b"\0" + bytes(level for pixel in pixels for level in pixel) if pixels else b""
    return raw_png(rows, 8, interlaced=True)


def in_16_bits(picture):
    rows = b""
    for y in range(HEIGHT):
        levels = [level for x in range(WIDTH) for level in picture.getpixel((x, y))]
        rows += b"\0" + b"".join(struct.pack(">H", level * 257) for level in levels)
    return raw_png(rows, 16)


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def files(picture):
    palette = picture.quantize(16, dither=Image.Dither.NONE)
    wide = palette.copy()
    wide.putpalette((palette.getpalette() + [7] * 768)[:768])
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "the same pixels")
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "png": saved(picture, "PNG"),
        "png-uncompressed": saved(picture, "PNG", compress_level=0),
        "png-metadata": saved(picture, "PNG", pnginfo=text, dpi=(300, 300)),
        "png-interlaced": interlaced(picture),
        "png-16-bits": in_16_bits(picture),
        "png-alpha": saved(picture.convert("RGBA"), "PNG"),
        "png-palette": saved(wide, "PNG", bits=8),
        "png-palette-4-bits": saved(palette, "PNG", bits=4),
        "png-turned": saved(picture.transpose(Image.Transpose.ROTATE_90), "PNG", exif=turned),
        "webp-lossless": saved(picture, "WEBP", lossless=True),
        "webp-metadata": saved(picture, "WEBP", lossless=True, exif=Image.Exif()),
        "gif": saved(palette, "GIF"),
        "gif-two-frames": saved(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
    }


def read(file):
    return ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=REPOSITORY / "tests/fixtures/images/containers.json")
    out = arguments.parse_args().out
    picture = Image.new("RGB", (WIDTH, HEIGHT))
    picture.putdata([colour(x, y) for y in range(HEIGHT) for x in range(WIDTH)])
    same = files(picture)
    for name, file in same.items():
        # Pillow reads 16 bits of a colour as 8.
        assert read(file).tobytes() == picture.tobytes(), name
    changed = picture.copy()
    red, green, blue = changed.getpixel((17, 9))
    changed.putpixel((17, 9), (red, green + 1, blue))
    text = lambda file: base64.b64encode(file).decode()  # noqa: E731
    same = {name: text(file) for name, file in same.items()}
    found = {"same": same, "changed": text(saved(changed, "PNG"))}
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

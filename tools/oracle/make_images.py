"""Makes tests/fixtures/images: pictures of all formats, and patches as transformers' image processors compute them.

    python tools/oracle/make_images.py [--out tests/fixtures/images]

It needs the packages of tools/oracle/images.txt, and no torch. `cases.json` has sizes and digests alone: the tests make
the pictures again, by the formulas of `sample` and `png` here, which are written in Rust in crates/images/src/tests.
`files.json` has whole files with their pixels.
"""

import argparse
import base64
import hashlib
import io
import json
import math
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
import transformers
from PIL import Image, ImageOps
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests/fixtures/images"

HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

# Settings as model folders have them: the two files, and the model's type.
PROCESSORS = {
    "qwen3": {
        "model_type": "qwen3_5",
        "preprocessor": {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **HALVES,
        },
    },
    "qwen3-small": {
        "model_type": "qwen3_vl",
        "preprocessor": {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": 3136, "longest_edge": 50176},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **HALVES,
        },
    },
    "qwen2-small": {
        "model_type": "qwen2_vl",
        "preprocessor": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 40000,
        },
    },
    "gemma3": {
        "model_type": "gemma3",
        "preprocessor": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 896, "width": 896},
            "resample": 2,
            "do_pan_and_scan": None,
            "image_seq_length": 256,
            **HALVES,
        },
    },
    "gemma3-small": {
        "model_type": "gemma3",
        "preprocessor": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 112, "width": 112},
            "image_seq_length": 4,
        },
    },
    "gemma4": {
        "model_type": "gemma4",
        "processor": {
            "image_processor": {
                "image_processor_type": "Gemma4ImageProcessor",
                "max_soft_tokens": 280,
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "do_normalize": False,
                "resample": 3,
            }
        },
    },
    "gemma4-small": {
        "model_type": "gemma4",
        "processor": {
            "image_processor": {
                "image_processor_type": "Gemma4ImageProcessorFast",
                "max_soft_tokens": 70,
                "patch_size": 8,
                "pooling_kernel_size": 3,
                "do_normalize": False,
            }
        },
    },
    "pixtral-small": {
        "model_type": "pixtral",
        "preprocessor": {
            "image_processor_type": "PixtralImageProcessorFast",
            "patch_size": {"height": 16, "width": 16},
            "size": {"longest_edge": 128},
        },
        "processor": {"patch_size": 16},
    },
    "ministral3": {
        "model_type": "mistral3",
        "processor": {
            "image_processor": {
                "image_processor_type": "PixtralImageProcessorFast",
                "patch_size": 14,
                "size": {"longest_edge": 1540},
            },
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
    },
    "ministral3-small": {
        "model_type": "mistral3",
        "processor": {
            "image_processor": {
                "image_processor_type": "PixtralImageProcessorFast",
                "patch_size": 14,
                "size": {"longest_edge": 196},
            },
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
    },
    "lfm2": {
        "model_type": "lfm2_vl",
        "preprocessor": {
            "image_processor_type": "Lfm2VlImageProcessorFast",
            "do_image_splitting": True,
            "downsample_factor": 2,
            "encoder_patch_size": 16,
            "max_image_tokens": 256,
            "min_image_tokens": 64,
            "max_pixels_tolerance": 2.0,
            "max_tiles": 10,
            "min_tiles": 2,
            "tile_size": 512,
            "use_thumbnail": True,
            "resample": 2,
            **HALVES,
        },
    },
    "lfm2-small": {
        "model_type": "lfm2_vl",
        "preprocessor": {
            "image_processor_type": "Lfm2VlImageProcessorFast",
            "max_image_tokens": 16,
            "min_image_tokens": 4,
            "tile_size": 64,
            "encoder_patch_size": 8,
            **HALVES,
        },
    },
}

# PNG's colour type and bits of each kind of picture. "trns": one colour, or entries of the palette, are transparent.
KINDS = {
    "rgb8": (2, 8),
    "rgb8-trns": (2, 8),
    "rgba8": (6, 8),
    "grey8": (0, 8),
    "greya8": (4, 8),
    "grey1": (0, 1),
    "grey2": (0, 2),
    "grey4": (0, 4),
    "palette8": (3, 8),
    "palette4-trns": (3, 4),
    "palette1": (3, 1),
    "rgb16": (2, 16),
    "rgba16": (6, 16),
    "grey16": (0, 16),
    "greya16": (4, 16),
}
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def sample(x, y, channel, seed):
    """A sample of 8 bits: noise if the seed is odd, else ramps."""
    if seed % 2 == 1:
        value = x * 73 + y * 151 + channel * 57 + seed * 29 + ((x * y) >> 2) * 3 + ((x ^ y) & 31) * 5
    else:
        value = x * 5 + y * 3 + channel * 40 + seed
    return value & 255


def samples(width, height, kind, seed):
    """Shape: (height, width, channels), of the kind's bits."""
    colour, bits = KINDS[kind]
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = [sample(x, y, channel, seed) for channel in range(CHANNELS[colour])]
    stacked = np.stack(planes, axis=-1)
    if bits == 16:
        low = np.stack([sample(y, x, channel, seed) for channel in range(CHANNELS[colour])], axis=-1)
        return stacked * 256 + low
    return stacked >> (8 - bits)


def palette(bits, seed):
    return bytes(sample(index * 7, 3, channel, seed) for index in range(1 << bits) for channel in range(3))


def exif(orientation):
    """A TIFF structure with one entry, in either byte order."""
    order = ">" if orientation % 2 else "<"
    mark = b"MM\0*" if orientation % 2 else b"II*\0"
    return mark + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, kind, seed, orientation):
    colour, bits = KINDS[kind]
    values = samples(width, height, kind, seed)
    if bits == 16:
        rows = values.astype(">u2").tobytes()
        stride = width * CHANNELS[colour] * 2
    elif bits == 8:
        rows = values.astype(np.uint8).tobytes()
        stride = width * CHANNELS[colour]
    else:
        unpacked = np.unpackbits(values.reshape(height, width, 1).astype(np.uint8), axis=-1)[..., 8 - bits :]
        rows = np.packbits(unpacked.reshape(height, width * bits), axis=-1)
        stride = rows.shape[1]
        rows = rows.tobytes()
    raw = b"".join(b"\0" + rows[y * stride : (y + 1) * stride] for y in range(height))
    chunks = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))]
    if orientation != 1:
        chunks.append(chunk(b"eXIf", exif(orientation)))
    if colour == 3:
        chunks.append(chunk(b"PLTE", palette(bits, seed)))
    if kind == "rgb8-trns":
        chunks.append(chunk(b"tRNS", struct.pack(">HHH", *(int(value) for value in values[0, 0]))))
    if kind == "palette4-trns":
        chunks.append(chunk(b"tRNS", bytes(index * 17 for index in range(12))))
    chunks += [chunk(b"IDAT", zlib.compress(raw, 1)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def opaque(image):
    """RGB on white, as transformers' `convert_to_rgb`."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def picture(width, height, kind, seed, orientation):
    """The upright RGB picture, as Pillow reads the file."""
    image = Image.open(io.BytesIO(png(width, height, kind, seed, orientation)))
    return opaque(ImageOps.exif_transpose(image))


def cut(array, patch):
    """Shape: (channels, height, width) to (rows * columns, channels * patch * patch)."""
    channels, height, width = array.shape
    patches = array.reshape(channels, height // patch, patch, width // patch, patch)
    return patches.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch)


def resized(image, width, height, resample):
    return image if image.size == (width, height) else image.resize((width, height), resample)


def qwen(image, settings):
    made = Qwen2VLImageProcessorPil(**settings)(image)
    _, rows, columns = (int(n) for n in np.asarray(made["image_grid_thw"])[0])
    side = settings.get("patch_size", 14)
    view = resized(image, columns * side, rows * side, Image.Resampling.BICUBIC)
    return [view], [np.asarray(made["pixel_values"])], [rows * columns // 4], None


def gemma3(image, settings):
    made = np.asarray(Gemma3ImageProcessorPil(**settings)(image)["pixel_values"])[0]
    view = resized(image, made.shape[2], made.shape[1], Image.Resampling.BILINEAR)
    return [view], [cut(made, 14)], [settings["image_seq_length"]], None


def gemma4(image, settings):
    made = Gemma4ImageProcessorPil(**settings)(image)
    positions = np.asarray(made["image_position_ids"])[0]
    real = positions[:, 0] >= 0
    columns, rows = (int(n) + 1 for n in positions[real].max(axis=0))
    side = settings["patch_size"]
    view = resized(image, columns * side, rows * side, Image.Resampling.BICUBIC)
    tokens = [int(made["num_soft_tokens_per_image"][0])]
    return [view], [np.asarray(made["pixel_values"])[0][real]], tokens, None


def pixtral(image, settings, outer):
    """The processor around it sets the patch to whole blocks."""
    block = outer["patch_size"] * outer.get("spatial_merge_size", 1)
    settings = settings | {"patch_size": {"height": block, "width": block}}
    made = np.asarray(PixtralImageProcessorPil(**settings)(image)["pixel_values"])[0]
    _, height, width = made.shape
    view = resized(image, width, height, Image.Resampling.BICUBIC)
    rows, columns = height // block, width // block
    return [view], [cut(made, outer["patch_size"])], [rows * columns], [rows, columns]


def lfm2(image, settings):
    """Lfm2VlImageProcessor exists for torchvision alone. This is its arithmetic of sizes, with Pillow's resampling and
    torchvision's fused normalisation."""
    width, height = image.size
    side, unit = settings["encoder_patch_size"], settings["encoder_patch_size"] * 2
    min_pixels, max_pixels = (settings[key] * unit**2 for key in ("min_image_tokens", "max_image_tokens"))
    tile = settings["tile_size"]

    def whole():
        h, w = (max(unit, round(n / unit) * unit) for n in (height, width))
        if h * w > max_pixels:
            beta = math.sqrt((height * width) / max_pixels)
            return tuple(max(unit, math.floor(n / beta / unit) * unit) for n in (width, height))
        if h * w < min_pixels:
            beta = math.sqrt(min_pixels / (height * width))
            return tuple(math.ceil(n * beta / unit) * unit for n in (width, height))
        return w, h

    def layout():
        ratios = {(w, h) for w in range(1, 11) for h in range(1, 11) if 2 <= w * h <= 10}
        best, least = (1, 1), math.inf
        for ratio in sorted(ratios, key=lambda ratio: ratio[0] * ratio[1]):
            difference = abs(width / height - ratio[0] / ratio[1])
            if difference < least:
                best, least = ratio, difference
            elif difference == least and width * height > 0.5 * tile * tile * ratio[0] * ratio[1]:
                best = ratio
        return best

    if max(whole()) * min(whole()) > max(max_pixels, tile**2):
        raise ValueError("image_scaled_too_large")
    h, w = (max(side, round(n / unit) * unit) for n in (height, width))
    rows_columns, views = None, []
    if h * w > max_pixels * 2.0:
        columns, rows = layout()
        rows_columns = [rows, columns]
        large = resized(image, columns * tile, rows * tile, Image.Resampling.BILINEAR)
        for y in range(rows):
            for x in range(columns):
                views.append(large.crop((x * tile, y * tile, (x + 1) * tile, (y + 1) * tile)))
    views.append(resized(image, *whole(), Image.Resampling.BILINEAR))
    patches = []
    for view in views:
        mean = np.float32(0.5) * np.float32(255)
        floats = (np.array(view).astype(np.float32) - mean) / mean
        rows, columns = floats.shape[0] // side, floats.shape[1] // side
        cut_up = floats.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        patches.append(cut_up.reshape(rows * columns, side * side * 3))
    return views, patches, [len(patch) // 4 for patch in patches], rows_columns


def process(name, image):
    """The views, their patches and tokens, and the rows and columns of the text."""
    entry = PROCESSORS[name]
    outer = entry.get("processor", {})
    settings = outer.get("image_processor") or entry["preprocessor"]
    settings = {key: value for key, value in settings.items() if key != "image_processor_type"}
    if name.startswith("qwen"):
        return qwen(image, settings)
    if name.startswith("gemma3"):
        return gemma3(image, settings)
    if name.startswith("gemma4"):
        return gemma4(image, settings)
    if name.startswith("lfm2"):
        return lfm2(image, PROCESSORS["lfm2"]["preprocessor"] | settings)
    return pixtral(image, settings, outer)


def digest(parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def case(processor, size, kind="rgb8", seed=1, orientation=1):
    image = picture(*size, kind, seed, orientation)
    made = {"processor": processor, "size": size, "kind": kind, "seed": seed, "orientation": orientation}
    try:
        views, patches, tokens, rows = process(processor, image)
    except ValueError as error:
        known = {"absolute aspect ratio": "image_aspect_ratio", "image_scaled_too_large": "image_scaled_too_large"}
        code = next((code for words, code in known.items() if words in str(error)), None)
        # Pixtral's processor scales strips to no pixels and fails in Pillow; the engine gives them one block.
        if code is None and "=0," in str(error):
            return None
        if code is None:
            raise
        return made | {"error": code}
    return made | {
        "views": [view.size for view in views],
        "tokens": tokens,
        "rows": rows,
        "pixels": digest(np.array(view).tobytes() for view in views),
        "patches": digest(np.ascontiguousarray(patch, dtype="<f4").tobytes() for patch in patches),
    }


SIZES = [
    (1, 1), (1, 2), (2, 1), (3, 3), (7, 5), (16, 16), (28, 28), (31, 33), (32, 32), (33, 31), (48, 16), (56, 56),
    (64, 64), (63, 65), (127, 129), (224, 224), (225, 223), (256, 100), (100, 256), (300, 4), (4, 300), (4097, 33),
    (33, 4097), (640, 480), (480, 640), (512, 511), (199, 1), (1, 199), (398, 2), (2, 398), (200, 1), (1, 200),
    (201, 1), (1, 201), (402, 2), (2, 402), (995, 5), (5, 1005),
]  # fmt: skip
SMALL = ["qwen3-small", "qwen2-small", "gemma3-small", "gemma4-small", "pixtral-small", "ministral3-small", "lfm2-small"]


def cases():
    made = []
    for at, size in enumerate(SIZES):
        made += [case(name, size, seed=1 + at % 2) for name in ("qwen3-small", SMALL[1 + at % 6])]
    # Strips longer than a model takes.
    made += [case(name, size) for name in ("lfm2-small", "gemma4-small", "pixtral-small") for size in ((4097, 1), (1, 4097))]
    choose = random.Random(55)
    for at in range(330):
        size = (choose.randint(1, 380), choose.randint(1, 380))
        made.append(case(SMALL[at % 7], size, seed=choose.randint(1, 99)))
    for at in range(64):
        size = (choose.randint(1, 90), choose.randint(1, 90))
        kind = list(KINDS)[at % len(KINDS)]
        made.append(case(SMALL[at % 7], size, kind, choose.randint(1, 99), 1 + at % 8))
    for kind in KINDS:
        made.append(case("qwen3-small", (61, 47), kind, 7))
    for orientation in range(1, 9):
        made.append(case("qwen3-small", (83, 57), "rgb8", 4, orientation))
    # The settings of released models.
    for name in ("qwen3", "gemma3", "gemma4", "ministral3", "lfm2"):
        made.append(case(name, (301, 203), seed=3))
    made += [case("lfm2", (1100, 700), seed=2), case("qwen3", (90, 70), seed=3)]
    return [one for one in made if one is not None]


def smooth(width, height):
    """A picture that survives JPEG well."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [127 + 100 * np.sin(x / 9 + c) * np.cos(y / 7 - c / 2) for c in range(3)]
    return Image.fromarray(np.stack(planes, axis=-1).round().astype(np.uint8))


def saved(image, name, tolerance, orientation=1, **options):
    """A file, and the upright pixels that Pillow reads from it."""
    if orientation != 1:
        tag = Image.Exif()
        tag[0x0112] = orientation
        options["exif"] = tag
    buffer = io.BytesIO()
    image.save(buffer, **options)
    read = opaque(ImageOps.exif_transpose(Image.open(io.BytesIO(buffer.getvalue()))))
    return {
        "name": name,
        "tolerance": tolerance,
        "size": read.size,
        "file": base64.b64encode(buffer.getvalue()).decode(),
        "pixels": base64.b64encode(np.array(read).tobytes()).decode(),
    }


# Chroma of at most two samples across is not smoothed.
NARROW = [(1, 1), (2, 5), (4, 3), (5, 2), (16, 16), (17, 33)]


def files():
    image, grey = smooth(29, 22), smooth(29, 22).convert("L")
    clear = image.copy()
    clear.putalpha(Image.fromarray((np.mgrid[0:22, 0:29][1] * 8).astype(np.uint8)))
    # The first frame leaves a part of the screen open.
    table = image.quantize(32)
    holes = table.copy()
    holes.putpixel((3, 4), 5)
    jpeg = {"format": "JPEG", "quality": 92}
    return [
        saved(image, "jpeg-444", 0, subsampling=0, **jpeg),
        saved(image, "jpeg-420", 0, subsampling=2, **jpeg),
        saved(image, "jpeg-422", 0, subsampling=1, **jpeg),
        saved(grey, "jpeg-grey", 0, **jpeg),
        saved(image, "jpeg-progressive", 0, subsampling=0, progressive=True, **jpeg),
        saved(image, "jpeg-progressive-420", 0, subsampling=2, progressive=True, **jpeg),
        *(saved(image, f"jpeg-exif-{n}", 0, n, subsampling=0, **jpeg) for n in (3, 6, 8)),
        saved(image.convert("CMYK"), "jpeg-cmyk", 0, **jpeg),
        saved(image, "jpeg-rgb", 0, subsampling=0, keep_rgb=True, **jpeg),
        saved(image, "jpeg-restarts", 0, subsampling=2, restart_marker_blocks=1, **jpeg),
        saved(image, "jpeg-progressive-restarts", 0, progressive=True, restart_marker_blocks=1, **jpeg),
        *(saved(smooth(*size), "jpeg-420-%dx%d" % size, 0, subsampling=2, **jpeg) for size in NARROW),
        saved(image, "webp-lossless", 0, format="WEBP", lossless=True),
        saved(clear, "webp-lossless-alpha", 0, format="WEBP", lossless=True, exact=True),
        saved(image, "webp-lossy", 2, format="WEBP", quality=90),
        saved(clear, "webp-lossy-alpha", 2, format="WEBP", quality=90),
        saved(image, "webp-exif-5", 0, 5, format="WEBP", lossless=True),
        saved(table, "gif", 0, format="GIF", interlace=0),
        saved(table, "gif-interlaced", 0, format="GIF", interlace=1),
        saved(holes, "gif-transparent", 0, format="GIF", transparency=5),
        saved(image.convert("P"), "gif-two-frames", 0, format="GIF", save_all=True, append_images=[grey.convert("P")]),
        saved(image, "png", 0, format="PNG"),
        saved(clear, "png-alpha", 0, format="PNG"),
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    provenance = {"pillow": PIL.__version__, "transformers": transformers.__version__}
    with open(out / "cases.json", "w") as file:
        file.write(json.dumps({"provenance": provenance, "processors": PROCESSORS})[:-1] + ', "cases": [\n')
        lines = [json.dumps(made, separators=(",", ":")) for made in cases()]
        file.write(",\n".join(lines) + "\n]}\n")
    with open(out / "files.json", "w") as file:
        lines = [json.dumps(made) for made in files()]
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()

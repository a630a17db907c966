"""The wheel: `pip install` puts the binary into the environment's `bin`. PEP 427, in the form of maturin's `bin`."""

import base64
import hashlib
import stat
import time
import zipfile

from .elf import glibc_floor
from .product import EPOCH, LICENCES
from .target import macos_floor


def make(product):
    name = product.names["pypi"].replace("-", "_")
    info = f"{name}-{product.wheel_version}.dist-info"
    tag = f"py3-none-{platform(product)}"
    file = product.out / f"{name}-{product.wheel_version}-{tag}.whl"
    level = 1 if product.fast else 9
    record = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as wheel:

        def add(path, data, mode=0o644, is_recorded=True):
            entry = zipfile.ZipInfo(path, time.gmtime(EPOCH)[:6])
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data, compresslevel=level)
            if is_recorded:
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                record.append(f"{path},sha256={digest},{len(data)}\n")

        add(f"{name}-{product.wheel_version}.data/scripts/souffleur", product.binary.read_bytes(), 0o755)
        for licence in LICENCES:
            add(f"{info}/licenses/{licence}", product.text(licence).encode())
        add(f"{info}/METADATA", metadata(product).encode())
        fields = f"Wheel-Version: 1.0\nGenerator: packaging/make\nRoot-Is-Purelib: false\nTag: {tag}\n"
        add(f"{info}/WHEEL", fields.encode())
        record.append(f"{info}/RECORD,,\n")
        add(f"{info}/RECORD", "".join(record).encode(), is_recorded=False)
    return [file]


def platform(product):
    """The platform's tag, which tells pip the oldest system that the binary runs on."""
    system, machine = product.target
    if system == "darwin":
        major, minor = macos_floor(product.binary)
        return f"macosx_{major}_{minor}_arm64"
    major, minor = glibc_floor(product.binary)
    return f"manylinux_{major}_{minor}_{machine}"


def metadata(product):
    licences = "".join(f"License-File: {licence}\n" for licence in LICENCES)
    return (
        "Metadata-Version: 2.4\n"
        f"Name: {product.names['pypi']}\n"
        f"Version: {product.wheel_version}\n"
        f"Summary: {product.summary}\n"
        f"License-Expression: {product.licence}\n"
        f"{licences}"
        f"Project-URL: Repository, {product.repository}\n"
        "Requires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n\n"
    ) + product.text("README.md")

"""The OCI image, as a layout in a tar archive: the binary and the libraries that it needs, nothing else."""

import json
import pathlib
import re
import subprocess

from .product import LICENCES, gzipped, sha256, tar_of

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
USER_ID = 65532
USER = f"{USER_ID}:{USER_ID}"
STATE = "/var/lib/souffleur"
# A new volume takes owner and mode of the image's folder at its path.
WRITABLE = {"models": (USER_ID, 0o755), STATE.lstrip("/"): (USER_ID, 0o755), "tmp": (0, 0o1777)}
# libcuda.so.1, which a container runtime mounts, names them too. Since glibc 2.34 they hold nothing but their names.
OF_LIBCUDA = ("libdl.so.2", "libpthread.so.0", "librt.so.1")


def make(product):
    layer_tar = tar_of(files(product), own=WRITABLE)
    blobs = {}

    def put(data, media_type):
        digest = sha256(data)
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    layer = put(gzipped(layer_tar, product.fast), LAYER)
    config = put(text(configuration(product, sha256(layer_tar))), CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}
    manifest = put(text(manifest), MANIFEST)
    manifest["annotations"] = {
        "org.opencontainers.image.ref.name": product.version,
        # The name that `docker load` and `podman load` give the image.
        "io.containerd.image.name": f"docker.io/library/souffleur:{product.version}",
    }
    blobs["index.json"] = text({"schemaVersion": 2, "manifests": [manifest]})
    blobs["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
    file = product.out / f"souffleur-{product.version}-{product.target.machine}.oci.tar"
    file.write_bytes(tar_of([(path, data, 0o644) for path, data in blobs.items()]))
    return [file]


def text(value):
    return json.dumps(value, indent=2).encode()


def configuration(product, layer_digest):
    return {
        "architecture": ARCHITECTURES[product.target.machine],
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/usr/bin/souffleur"],
            "Cmd": ["--host", "0.0.0.0"],
            "ExposedPorts": {"30000/tcp": {}},
            # The root may be read-only: downloads and the unpacked bundled model go to a volume or to /tmp.
            "Env": [f"HOME={STATE}", "HF_HOME=/models", "SOUFFLEUR_CACHE_DIR=/tmp/souffleur"],
            "Volumes": {"/models": {}, "/tmp": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "souffleur",
                "org.opencontainers.image.version": product.version,
                "org.opencontainers.image.licenses": product.licence,
                "org.opencontainers.image.source": product.repository,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


def files(product):
    yield "usr/bin/souffleur", product.binary.read_bytes(), 0o755
    for library in libraries(product.binary):
        yield library.lstrip("/"), pathlib.Path(library).read_bytes(), 0o755
    yield "etc/passwd", b"root:x:0:0:root:/:/\nsouffleur:x:65532:65532:souffleur:/var/lib/souffleur:/\n", 0o644
    yield "etc/group", b"root:x:0:\nsouffleur:x:65532:\n", 0o644
    for folder in WRITABLE:
        yield f"{folder}/.keep", b"", 0o644
    for name in LICENCES:
        yield f"usr/share/doc/souffleur/{name}", product.text(name).encode(), 0o644


def libraries(binary):
    """The absolute paths of the loader and the libraries that the binary and libcuda need, as `ldd` finds them."""
    listed = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    found = set(re.findall(r"(/\S+) \(0x", listed))
    libc = next(pathlib.Path(path) for path in found if path.endswith("/libc.so.6"))
    return sorted(found | {str(libc.with_name(name)) for name in OF_LIBCUDA})

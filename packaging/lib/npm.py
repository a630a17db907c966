"""The npm packages: a launcher, and the binary for one platform as its optional dependency."""

import json

from .product import LICENCES, gzipped, tar_of

CPUS = {"x86_64": "x64", "aarch64": "arm64"}


def make(product):
    scope, cpu = product.names["npm"], CPUS[product.machine]
    platform = f"{scope}/linux-{cpu}"
    common = {
        "version": product.version,
        "description": product.summary,
        "license": product.licence,
        "repository": {"type": "git", "url": f"git+{product.repository}.git"},
    }
    binary = {
        "name": platform,
        **common,
        "os": ["linux"],
        "cpu": [cpu],
        "libc": ["glibc"],
        "files": ["bin", *LICENCES],
    }
    launcher = {
        "name": f"{scope}/cli",
        **common,
        "bin": {"souffleur": "bin/souffleur.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {f"{scope}/linux-{name}": product.version for name in sorted(CPUS.values())},
    }
    script = product.text("packaging/templates/launcher.js").replace("@SCOPE@", scope)
    return [
        pack(product, binary, [("bin/souffleur", product.binary.read_bytes(), 0o755)]),
        pack(product, launcher, [("bin/souffleur.js", script.encode(), 0o755)]),
    ]


def pack(product, manifest, files):
    text = json.dumps(manifest, indent=2) + "\n"
    files = [*files, ("package.json", text.encode(), 0o644)]
    for name in (*LICENCES, "README.md"):
        files.append((name, product.text(name).encode(), 0o644))
    name = manifest["name"].removeprefix("@").replace("/", "-")
    file = product.out / f"{name}-{product.version}.tgz"
    file.write_bytes(gzipped(tar_of(files, "package/"), product.fast))
    return file

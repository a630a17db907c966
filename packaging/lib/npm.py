"""The npm packages: a launcher, and the binary for one platform as its optional dependency."""

import json

from .product import LICENCES, gzipped, tar_of
from .target import TARGETS

CPUS = {"x86_64": "x64", "aarch64": "arm64"}


def make(product):
    scope, system, cpu = product.names["npm"], product.target.system, CPUS[product.target.machine]
    common = {
        "version": product.version,
        "description": product.summary,
        "license": product.licence,
        "repository": {"type": "git", "url": f"git+{product.repository}.git"},
    }
    binary = {
        "name": name(scope, product.target),
        **common,
        "os": [system],
        "cpu": [cpu],
        **({"libc": ["glibc"]} if system == "linux" else {}),
        "files": ["bin", *LICENCES],
    }
    launcher = {
        "name": f"{scope}/cli",
        **common,
        "bin": {"souffleur": "bin/souffleur.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {name(scope, target): product.version for target in sorted(TARGETS)},
    }
    script = product.text("packaging/templates/launcher.js").replace("@SCOPE@", scope)
    return [
        pack(product, binary, [("bin/souffleur", product.binary.read_bytes(), 0o755)]),
        pack(product, launcher, [("bin/souffleur.js", script.encode(), 0o755)]),
    ]


def name(scope, target):
    """The name of the package of a platform, in the words of Node's `process`."""
    return f"{scope}/{target.system}-{CPUS[target.machine]}"


def file_name(package, version):
    """The file of a package, as `npm pack` names it."""
    return f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz"


def pack(product, manifest, files):
    text = json.dumps(manifest, indent=2) + "\n"
    files = [*files, ("package.json", text.encode(), 0o644)]
    for path in (*LICENCES, "README.md"):
        files.append((path, product.text(path).encode(), 0o644))
    file = product.out / file_name(manifest["name"], product.version)
    file.write_bytes(gzipped(tar_of(files, "package/"), product.fast))
    return file

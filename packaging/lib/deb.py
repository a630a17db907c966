"""The Debian package: binary, systemd unit, configuration, manual pages, completions."""

import os
import pathlib
import subprocess
import tempfile

from .elf import glibc_floor
from .product import EPOCH, LICENCES, gzipped

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
FOLDERS = {
    "souffleur": "usr/share/bash-completion/completions",
    "_souffleur": "usr/share/zsh/vendor-completions",
    "souffleur.fish": "usr/share/fish/vendor_completions.d",
}


def make(product):
    architecture = ARCHITECTURES[product.target.machine]
    file = product.out / f"souffleur_{product.version}_{architecture}.deb"
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        for path, data, mode in files(product):
            place(root / path, data, mode)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
        place(root / "DEBIAN/control", control(product, architecture, size).encode(), 0o644)
        place(root / "DEBIAN/conffiles", b"/etc/souffleur/souffleur.toml\n", 0o644)
        for script in ("postinst", "prerm", "postrm"):
            place(root / "DEBIAN" / script, product.text(f"packaging/templates/{script}").encode(), 0o755)
        compression = ["-Zgzip", "-z1"] if product.fast else ["-Zxz"]
        command = ["dpkg-deb", "--root-owner-group", *compression, "--build", str(root), str(file)]
        environment = {"SOURCE_DATE_EPOCH": str(EPOCH), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    return [file]


def files(product):
    yield "usr/bin/souffleur", product.binary.read_bytes(), 0o755
    yield "usr/lib/systemd/system/souffleur.service", product.text("deploy/souffleur.service").encode(), 0o644
    yield "usr/lib/sysusers.d/souffleur.conf", product.text("deploy/souffleur.sysusers").encode(), 0o644
    yield "etc/souffleur/souffleur.toml", configuration(product).encode(), 0o644
    for name, page in product.manual().items():
        yield f"usr/share/man/man1/{name}.gz", gzipped(page, False), 0o644
    for name, script in product.completions().items():
        yield f"{FOLDERS[name]}/{name}", script, 0o644
    for name in (*LICENCES, "README.md"):
        yield f"usr/share/doc/souffleur/{name}", product.text(name).encode(), 0o644
    cuda = product.text("deploy/souffleur.service.d/cuda.conf").encode()
    yield "usr/share/doc/souffleur/examples/cuda.conf", cuda, 0o644
    yield "usr/share/doc/souffleur/copyright", copyright(product).encode(), 0o644
    changes = gzipped(product.text("CHANGELOG.md").encode(), False)
    yield "usr/share/doc/souffleur/changelog.gz", changes, 0o644


def configuration(product):
    """All keys of config/default.toml, commented out: the defaults of a later version hold unless a key is set."""
    lines = product.text("config/default.toml").splitlines()
    keep = lambda line: not line or line.startswith(("#", "["))
    return "".join(f"{line if keep(line) else '#' + line}\n" for line in lines)


def control(product, architecture, size):
    major, minor = glibc_floor(product.binary)
    return (
        "Package: souffleur\n"
        f"Version: {product.deb_version}\n"
        f"Architecture: {architecture}\n"
        "Section: science\n"
        "Priority: optional\n"
        f"Maintainer: {product.names['maintainer']}\n"
        f"Installed-Size: {size}\n"
        f"Depends: libc6 (>= {major}.{minor}), libgcc-s1 | libgcc1, passwd\n"
        f"Homepage: {product.repository}\n"
        f"Description: {product.summary}\n"
        " It serves OpenAI's, Anthropic's and SGLang's APIs. The unit souffleur.service starts it with\n"
        " /etc/souffleur/souffleur.toml, once it is enabled.\n"
    )


def copyright(product):
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        f"Source: {product.repository}\n\n"
        "Files: *\n"
        f"Copyright: {product.names['maintainer']}\n"
        f"License: {product.licence.replace(' OR ', ' or ')}\n"
        " The texts are in /usr/share/doc/souffleur.\n"
    )


def place(path, data, mode):
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)

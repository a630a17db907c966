"""The archives: binary, licences, manual pages, completions, unit, user and default configuration in one folder."""

import lzma

from .product import LICENCES, gzipped, tar_of

UNIT = ("deploy/souffleur.service", "deploy/souffleur.service.d/cuda.conf", "deploy/souffleur.sysusers")


def make(product):
    name = f"souffleur-{product.version}-{product.target.triple}"
    tar = tar_of(files(product), f"{name}/")
    gz = product.out / f"{name}.tar.gz"
    gz.write_bytes(gzipped(tar, product.fast))
    if product.fast:
        return [gz]
    xz = product.out / f"{name}.tar.xz"
    xz.write_bytes(lzma.compress(tar, preset=6))
    return [gz, xz]


def files(product):
    yield "souffleur", product.binary.read_bytes(), 0o755
    unit = UNIT if product.target.system == "linux" else ()
    for name in (*LICENCES, "README.md", "CHANGELOG.md", "config/default.toml", *unit):
        yield name, product.text(name).encode(), 0o644
    for name, page in product.manual().items():
        yield f"man/{name}", page, 0o644
    for name, script in product.completions().items():
        yield f"completions/{name}", script, 0o644

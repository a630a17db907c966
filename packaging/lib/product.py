"""The binary that is packaged, its version, and the files that go with it."""

import gzip
import hashlib
import io
import pathlib
import re
import subprocess
import tarfile
import tempfile
import tomllib

from .target import target_of

# The time of every packaged file: packages of the same files are equal.
EPOCH = 1_700_000_000
SHELLS = {"bash": "souffleur", "zsh": "_souffleur", "fish": "souffleur.fish"}
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
# Python's names of the versions before a release.
EARLY = {"alpha": "a", "beta": "b", "rc": "rc"}


class Project:
    """The metadata of Cargo.toml, the files of the sources, and the folder for packages."""

    def __init__(self, out):
        self.root = pathlib.Path(__file__).resolve().parents[2]
        self.out = out
        with open(self.root / "Cargo.toml", "rb") as file:
            cargo = tomllib.load(file)
        package = cargo["package"]
        self.names = package["metadata"]["packages"]
        self.version = cargo["workspace"]["package"]["version"]
        # Python and Debian write 1.0.0-rc.1 otherwise; else it is no version of a wheel, and newer than 1.0.0.
        self.wheel_version = re.sub(r"-(alpha|beta|rc)\.(\d+)$", lambda m: EARLY[m[1]] + m[2], self.version)
        self.deb_version = self.version.replace("-", "~", 1)
        self.licence = cargo["workspace"]["package"]["license"]
        self.summary = package["description"]
        self.repository = package["repository"]

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")


class Product(Project):
    """A binary, and its outputs that are packaged."""

    def __init__(self, binary, out, fast):
        super().__init__(out)
        self.binary, self.fast = binary, fast
        self.target = target_of(binary)
        said = self.run("--version").split()
        if said[1] != self.version:
            raise SystemExit(f"{binary} is version {said[1]}, Cargo.toml has {self.version}: build it again")

    def run(self, *args):
        return subprocess.run([self.binary, *args], check=True, capture_output=True, text=True).stdout

    def manual(self):
        """The manual pages, by file name."""
        with tempfile.TemporaryDirectory() as folder:
            self.run("man", folder)
            pages = sorted(pathlib.Path(folder).iterdir())
            return {page.name: page.read_bytes() for page in pages}

    def completions(self):
        """The completions of each shell, by file name."""
        return {name: self.run("completions", shell).encode() for shell, name in SHELLS.items()}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tar_of(files, prefix="", own=None):
    """A tar archive of `(path, bytes, mode)`, with fixed times. Root owns all but the folders in `own`, which maps their
    paths to `(user, mode)`."""
    own = own or {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders = set()
        for path, data, mode in sorted(files):
            path = prefix + path
            for parent in reversed(pathlib.PurePosixPath(path).parents):
                if str(parent) != "." and parent not in folders:
                    folders.add(parent)
                    user, folder_mode = own.get(str(parent), (0, 0o755))
                    tar.addfile(entry(str(parent), tarfile.DIRTYPE, folder_mode, 0, user))
            tar.addfile(entry(path, tarfile.REGTYPE, mode, len(data)), io.BytesIO(data))
    return buffer.getvalue()


def entry(path, kind, mode, size, user=0):
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.size, info.mtime = kind, mode, size, EPOCH
    info.uid = info.gid = user
    return info


def gzipped(data, fast):
    return gzip.compress(data, 1 if fast else 9, mtime=EPOCH)


def write_sums(out):
    """Writes SHA256SUMS of the files in `out`, in the form of `sha256sum`."""
    files = [file for file in sorted(out.rglob("*")) if file.is_file() and file.name != "SHA256SUMS"]
    files = [file for file in files if "oci" not in file.relative_to(out).parts[:-1]]
    lines = [f"{sha256(file.read_bytes())}  {file.relative_to(out)}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")

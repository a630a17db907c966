"""The packages of a release, collected from the machines that made them."""

import fnmatch
import gzip

from . import npm, templates
from .deb import ARCHITECTURES
from .product import sha256, write_sums
from .target import TARGETS

SUMS = "SHA256SUMS"
# Each machine writes them for its own packages; a release has them for all.
REMADE = {SUMS, *templates.FILES}


def patterns(project):
    """A pattern for the name of each package. The tags of wheels have the oldest system."""
    version, names = project.version, project.names
    wheel = f"{names['pypi'].replace('-', '_')}-{project.wheel_version}-py3-none"
    yield npm.file_name(f"{names['npm']}/cli", version)
    for target in TARGETS:
        yield npm.file_name(npm.name(names["npm"], target), version)
        for end in ("tar.gz", "tar.xz", "cdx.json"):
            yield f"souffleur-{version}-{target.triple}.{end}"
        if target.system == "linux":
            yield f"{wheel}-manylinux_*_{target.machine}.whl"
            yield f"souffleur_{version}_{ARCHITECTURES[target.machine]}.deb"
            yield f"souffleur-{version}-{target.machine}.oci.tar"
        else:
            yield f"{wheel}-macosx_*_arm64.whl"


def merge(project, folders):
    """Copies the packages of all folders to `project.out`, with the files that need all of them."""
    if project.out.exists():
        raise SystemExit(f"{project.out} exists: packages are merged into a new folder")
    found = {}
    for folder in folders:
        for file in sorted(folder.iterdir()):
            same = found.setdefault(file.name, file)
            if file.name not in REMADE and contents(same) != contents(file):
                raise SystemExit(f"{same} and {file} differ: a package of one name must be the same on all machines")
    names = found.keys() - REMADE
    matches = {pattern: fnmatch.filter(names, pattern) for pattern in patterns(project)}
    faults = [f"{pattern} is missing" for pattern, files in matches.items() if not files]
    faults += [f"{pattern} is there {len(files)} times" for pattern, files in matches.items() if len(files) > 1]
    faults += [f"{name} is unexpected" for name in sorted(names - {one for files in matches.values() for one in files})]
    if faults:
        raise SystemExit(f"{', '.join(map(str, folders))} are no whole release:\n" + "\n".join(faults))
    project.out.mkdir(parents=True)
    for name in names:
        (project.out / name).write_bytes(found[name].read_bytes())
    list(templates.make(project))
    write_sums(project.out)


def contents(file):
    """The bytes of a file; of a compressed one those inside, as systems have different versions of zlib."""
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix in (".gz", ".tgz") else data


def files_of(folder):
    """The files of a merged release, which must be those of its sums."""
    sums = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in sums)}
    files = sorted(file for file in folder.iterdir() if file.name != SUMS)
    for file in files:
        if listed.pop(file.name, None) != sha256(file.read_bytes()):
            raise SystemExit(f"{file} does not have the sum in {SUMS}: merge the packages again")
    if listed:
        raise SystemExit(f"{folder} lacks {', '.join(listed)}, which {SUMS} names: merge the packages again")
    return [*files, folder / SUMS]

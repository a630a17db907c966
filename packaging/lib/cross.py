"""A folder with Debian sid's compilers for other machines, from packages that are unpacked and not installed."""

import os
import pathlib
import shutil
import subprocess

PACKAGES = (
    "rustc", "cargo", "rust-src", "libstd-rust-dev:arm64", "gcc", "gcc-aarch64-linux-gnu", "g++-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
)
# Of arm64, only Rust's libraries are needed: gcc has those of C for each target.
WANTED = ("_amd64.deb", "_all.deb")
# The configuration of network and certificates.
SYSTEM = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/ssl")
CERTIFICATES = ("CARGO_HTTP_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE")


def make(scratch, mirror, packages=PACKAGES):
    """Downloads and unpacks the packages, once for each list of packages. Returns the folder."""
    folder, mark = scratch / "root", scratch / "root.packages"
    want = "\n".join(packages)
    if mark.exists() and mark.read_text() == want:
        return folder
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    archives = download(scratch / "apt", mirror or debian_mirror(), packages)
    unpack(archives, folder)
    mark.write_text(want)
    shutil.rmtree(scratch / "apt")
    return folder


def debian_mirror():
    """The address of Debian's packages that this machine uses."""
    mirror = apt_mirror("Debian")
    if not mirror:
        advice = "run `apt-get update`, or name a mirror with --mirror URI"
        raise SystemExit(f"apt has no list of Debian's packages: {advice}")
    return mirror


def apt_mirror(origin):
    """The address of the packages of Debian or Ubuntu that apt uses; `None` without one that other programs can use."""
    form = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
    listed = output("apt-get", "indextargets", "--format", form, "Identifier: Packages")
    for line in listed.splitlines():
        words = line.split()
        if len(words) == 3 and words[:2] == [origin, "main"]:
            # Not mirror+file:/…, a list of mirrors that only apt reads.
            if words[2].startswith("http") and "security" not in words[2]:
                return words[2]
    return None


def download(apt, mirror, packages):
    """Downloads the packages and all that they depend on. Returns the folder of the archives."""
    for part in ("etc", "state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "etc/sources.list").write_text(f"deb {mirror} sid main\n")
    (apt / "state/status").touch()
    settings = {
        "Dir::Etc::SourceList": apt / "etc/sources.list", "Dir::Etc::SourceParts": "-",
        "Dir::State": apt / "state", "Dir::State::Status": apt / "state/status", "Dir::Cache": apt / "cache",
        "APT::Architecture": "amd64", "APT::Architectures": "amd64,arm64", "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false", "Acquire::Languages": "none",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    print(f"[packages] {mirror} sid: {' '.join(packages)}", flush=True)
    run("apt-get", "-qq", *options, "update")
    run("apt-get", "-qq", "-y", "--download-only", *options, "install", *packages)
    return apt / "cache/archives"


def unpack(archives, folder):
    """Unpacks the archives as one system, without the scripts that an installation runs."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    for archive in sorted(archives.glob("*.deb")):
        if archive.name.endswith(WANTED) or archive.name.startswith("libstd-rust"):
            run("dpkg-deb", "-x", archive, folder)
    (folder / "usr/bin/cc").symlink_to("gcc")
    for name in ("etc/ssl", "proc", "dev", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def enter(folder, scratch, sources, environment):
    """The start of a command inside the folder, which reads the sources and writes into the scratch folder."""
    command = ["bwrap", "--unshare-pid", "--die-with-parent", "--clearenv", "--bind", folder, "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in (*SYSTEM, *certificates()):
        if os.path.exists(path):
            command += ["--ro-bind", path, path]
    command += ["--ro-bind", sources, sources, "--bind", scratch, scratch, "--chdir", sources]
    home = scratch / "cargo"
    home.mkdir(exist_ok=True)
    config = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo") / "config.toml"
    if config.exists():
        command += ["--ro-bind", config, home / "config.toml"]
    kept = {name: os.environ[name] for name in os.environ if name in CERTIFICATES or name.lower().endswith("_proxy")}
    variables = {"PATH": "/usr/bin", "HOME": scratch, "CARGO_HOME": home, "CARGO_INCREMENTAL": "0"}
    for name, value in {**variables, **kept, **environment}.items():
        command += ["--setenv", name, value]
    return command


def certificates():
    """The paths of certificates that the environment names, outside of /etc/ssl."""
    named = {os.environ[name] for name in CERTIFICATES if name in os.environ}
    return sorted(path for path in named if not path.startswith("/etc/ssl/"))


def run(*command):
    """Runs a command, or ends this program with the command's name."""
    done = subprocess.run([str(part) for part in command], check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with status {done.returncode}")


def output(*command):
    """The output of a command."""
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout

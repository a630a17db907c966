"""The Homebrew formula and the Nix flake, with the sums of this version's archives."""

from .product import sha256
from .target import TARGETS

FILES = ("souffleur.rb", "flake.nix")


def make(project):
    values = {
        "@VERSION@": project.version,
        "@SUMMARY@": project.summary,
        "@REPOSITORY@": project.repository,
    }
    for target in TARGETS:
        archive = project.out / f"souffleur-{project.version}-{target.triple}.tar.gz"
        # The sum of an archive that was made elsewhere is filled in where all archives are together.
        values[f"@SHA256 {target.triple}@"] = sha256(archive.read_bytes()) if archive.exists() else "0" * 64
    for name in FILES:
        text = project.text(f"packaging/templates/{name}")
        for key, value in values.items():
            text = text.replace(key, value)
        file = project.out / name
        file.write_text(text, encoding="utf-8")
        yield file

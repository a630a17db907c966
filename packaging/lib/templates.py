"""The Homebrew formula and the Nix flake, with the sums of this version's archives."""

from .product import sha256


def make(product):
    archives = sorted(product.out.glob(f"souffleur-{product.version}-*-unknown-linux-gnu.tar.gz"))
    values = {
        "@VERSION@": product.version,
        "@SUMMARY@": product.summary,
        "@REPOSITORY@": product.repository,
    }
    for machine in ("x86_64", "aarch64"):
        files = [file for file in archives if machine in file.name]
        # The sum of an archive that was made elsewhere is filled in where all archives are together.
        values[f"@SHA256_{machine.upper()}@"] = sha256(files[0].read_bytes()) if files else "0" * 64
    for name in ("souffleur.rb", "flake.nix"):
        text = product.text(f"packaging/templates/{name}")
        for key, value in values.items():
            text = text.replace(key, value)
        file = product.out / name
        file.write_text(text, encoding="utf-8")
        yield file

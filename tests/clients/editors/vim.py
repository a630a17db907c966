"""Types in a Vim with llama.vim, in a new terminal."""

import os
import pty
import re
import subprocess
import threading

# Ctrl-\ Ctrl-N: normal mode from any mode, without the delay of an Escape.
NORMAL = "\x1c\x0e"
# The part of an instruction's system message that begins with texts of files.
FILES = "\n--- CONTEXT "
SYSTEM = "Change the selection.\n"


class Vim:
    """A Vim that edits files of the folder `project`."""

    def __init__(self, vim, plugin, project, url):
        settings = project.parent / "vimrc"
        settings.write_text(
            "set nocompatible noswapfile viminfo= nomore shortmess+=IF noautoindent\n"
            f"let g:llama_config = {{'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}}\n"
            f"set runtimepath^={plugin}\n")
        master, slave = pty.openpty()
        environment = dict(os.environ, HOME=str(project.parent), TERM="ansi", NO_PROXY="127.0.0.1")
        command = [vim, "-u", str(settings)]
        self.process = subprocess.Popen(command, cwd=project, stdin=slave, stdout=slave, stderr=slave,
                                        env=environment, start_new_session=True)
        os.close(slave)
        self.terminal = master
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        """Reads the screen, so that Vim does not wait for the terminal."""
        try:
            while os.read(self.terminal, 1 << 16):
                pass
        except OSError:
            pass

    def keys(self, text):
        """Types a text."""
        os.write(self.terminal, text.encode())

    def command(self, text):
        """Runs a command of Vim's command line."""
        self.keys(f"{NORMAL}:{text}\r")

    def close(self):
        """Ends Vim without saving."""
        self.command("qa!")
        self.process.wait(10)
        os.close(self.terminal)


def has_chunk(name):
    """Whether a call warms up with a chunk of a file."""
    def found(call):
        body = call["body"] or {}
        files = [file["filename"] for file in body.get("input_extra", [])]
        return body.get("n_predict") == 0 and any(file.endswith(name) for file in files)
    return found


def has_prompt(text):
    """Whether a call fills in after a text."""
    return lambda call: (call["body"] or {}).get("prompt") == text


def replace_system_prompt(call):
    """Replaces llama.vim's own sentences in an instruction, so that recordings have texts of this repository alone."""
    for message in (call["body"] or {}).get("messages", []):
        if message["role"] == "system":
            message["content"] = SYSTEM + message["content"][message["content"].index(FILES):]


def version(vim):
    """Vim's version with its patches."""
    text = subprocess.check_output([vim, "--version"], stdin=subprocess.DEVNULL, text=True)
    name = re.search(r"VIM - Vi IMproved (\S+)", text).group(1)
    patches = re.search(r"patches: \S*?(\d+)\b(?!-)", text)
    return f"Vim {name}" + (f".{patches.group(1)}" if patches else "")


def record(options, recorder, project, task):
    """Opens two files, then types lines in a third one, and requests a change of some lines."""
    vim = Vim(options.vim, options.llama_vim, project, recorder.url)
    try:
        for file in task.read:
            done = recorder.expect(f"a chunk of {file}", has_chunk(file))
            vim.command(f"edit {file}")
            done()
        vim.command(f"edit {task.edited}")
        vim.command(f"{task.line}")
        vim.keys("o")
        for line in task.typed:
            done = recorder.expect(f"the text after {line!r}", has_prompt(line))
            vim.keys(line)
            done()
            vim.keys("\r")
        vim.command("write")
        done = recorder.expect("an instruction", lambda call: (call["body"] or {}).get("stream") is True)
        vim.command(f"{task.line + 1},{task.line + len(task.typed)}LlamaInstruct")
        vim.keys(f"{task.instruction}\r")
        done()
    finally:
        vim.close()
    for call in recorder.calls:
        replace_system_prompt(call)
    return f"llama.vim, commit {options.llama_vim_commit}, in {version(options.vim)}"

"""Runs the extension llama.vscode in Node.js, with a stand-in of VS Code's API."""

import json
import os
import subprocess
from pathlib import Path

from vim import has_chunk, has_prompt

DRIVER = Path(__file__).parent / "vscode.cjs"


class Editor:
    """The extension's process."""

    def __init__(self, extension, project, url):
        environment = dict(os.environ, NO_PROXY="127.0.0.1", HOME=str(project.parent))
        command = ["node", str(DRIVER), str(extension), url, str(project)]
        self.process = subprocess.Popen(command, cwd=project.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=environment, text=True)

    def step(self, name, **arguments):
        """Does a step, and returns its result."""
        self.process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the extension ended at the step {name}")
        return json.loads(line)

    def close(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait(10)


def record(options, recorder, project, task):
    """Opens and saves files, types lines in the last one, and sends a message from the chat."""
    editor = Editor(options.llama_vscode, project, recorder.url)
    try:
        for file in [*task.read, task.edited]:
            done = recorder.expect(f"a chunk of {file}", has_chunk(file))
            editor.step("open", file=file)
            editor.step("save")
            done()
        for at, line in enumerate(task.typed):
            done = recorder.expect(f"the text after {line!r}", has_prompt(line))
            editor.step("type", line=task.line + at, text=line)
            done()
        done = recorder.expect("a chat", lambda call: call["path"].endswith("/chat/completions"))
        editor.step("chat", text=task.instruction)
        done()
    finally:
        editor.close()
    manifest = json.loads((options.llama_vscode / "package.json").read_text())
    node = subprocess.check_output(["node", "--version"], text=True).strip()
    return f"llama.vscode {manifest['version']}, in Node.js {node}"

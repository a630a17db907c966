"""Makes the texts of `souffleur bench --taught` from the history of a git repository.

Each line of the result is JSON with `kind`, `prompt` and `output`. The output is what a model would have to write:

| kind | prompt | output |
|---|---|---|
| `edit` | a commit's title and a file before the commit | the file after the commit |
| `diff` | the same | the commit's unified diff of the file |
| `json` | a list of commits in words | the list as JSON records |
| `prose` | the beginning of a document | its continuation |
| `message` | a commit's diff | its message |
| `code` | the beginning of a source file | its continuation |

The same repository, commit, seed and count give the same file, also if git is configured otherwise. Needs git and the
standard library.
"""

import argparse
import json
import os
import random
import subprocess
import sys

# Characters: about four are a token.
PROMPT = 6000
OUTPUT = (600, 2400)
PROSE = (".md", ".rst")
CODE = (".c", ".cc", ".cpp", ".go", ".h", ".java", ".js", ".py", ".rs", ".ts")
MAX_COMMITS = 2000


# Settings of the user and of the machine, and those of the repository that texts would depend on.
NO_SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
SETTINGS = ("core.attributesFile=/dev/null", "core.quotePath=true")
DIFF = (
    "--no-color --no-ext-diff --no-textconv --no-renames --diff-algorithm=myers --no-indent-heuristic -U3"
    " --inter-hunk-context=0 --abbrev=8 --src-prefix=a/ --dst-prefix=b/"
).split()


def git(repository, *arguments):
    """The output of a git command as text; None if it fails or is not UTF-8."""
    settings = [part for setting in SETTINGS for part in ("-c", setting)]
    command = ["git", "-C", repository, *settings, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= NO_SETTINGS
    result = subprocess.run(command, capture_output=True, check=False, env=environment)
    if result.returncode != 0:
        return None
    try:
        return result.stdout.decode("utf-8")
    except UnicodeDecodeError:
        return None


def commits(repository, revision):
    """Commits without merges, newest first: hash, author, date, title and message."""
    fields = "%x1e%H%x1f%an%x1f%as%x1f%s%x1f%b"
    fixed = ("--no-show-signature", "--no-color", "--no-notes", "--encoding=UTF-8", f"--format={fields}")
    log = git(repository, "log", "--no-merges", f"-{MAX_COMMITS}", *fixed, revision, "--")
    if log is None:
        sys.exit(f"{repository} has no commit {revision}: name a git repository and a revision")
    names = ("hash", "author", "date", "title", "body")
    records = (record.split("\x1f") for record in log.split("\x1e")[1:])
    return [dict(zip(names, (field.strip() for field in record))) for record in records]


def text(kind, prompt, output, least=OUTPUT[0]):
    """A text whose parts have a useful length; None for others."""
    if len(prompt) > PROMPT or not least <= len(output) <= OUTPUT[1]:
        return None
    return {"kind": kind, "prompt": prompt, "output": output}


def modified(repository, commit):
    """Paths of text files that a commit modifies."""
    arguments = ("diff-tree", "--no-commit-id", "--no-renames", "--name-status", "-r", "-z", commit["hash"])
    parts = (git(repository, *arguments) or "").split("\0")
    pairs = zip(parts[0::2], parts[1::2])
    return [path for status, path in pairs if status == "M" and path.endswith(PROSE + CODE)]


def asked(commit, path, old, wish):
    """The prompt of a change to a file."""
    return f"{commit['title']}\n\n{wish}\n\n{path}:\n```\n{old}```\n\nAnswer:\n```\n"


def content(repository, revision, path):
    """A file as it is in a commit."""
    return git(repository, "cat-file", "blob", f"{revision}:{path}")


def change_of(repository, commit, path):
    """The unified diff of a file."""
    parts = (f"{commit['hash']}^", commit["hash"], "--", path)
    return git(repository, "diff-tree", "-p", "-r", "--no-commit-id", *DIFF, *parts)


def edit(repository, commit, path):
    old = content(repository, f"{commit['hash']}^", path)
    new = content(repository, commit["hash"], path)
    if old is None or new is None:
        return None
    return text("edit", asked(commit, path, old, "Write the whole file with this change."), new)


def diff(repository, commit, path):
    old = content(repository, f"{commit['hash']}^", path)
    new = change_of(repository, commit, path)
    if old is None or new is None:
        return None
    prompt = asked(commit, path, old, "Write this change as a unified diff.")
    return text("diff", prompt, new, least=300)


def message(repository, commit, path):
    change = change_of(repository, commit, path)
    if change is None:
        return None
    output = f"{commit['title']}\n\n{commit['body']}".strip()
    prompt = f"{change}\nWrite the commit message of this change.\n\nMessage:\n"
    return text("message", prompt, output, least=60)


def records(chosen):
    """A list of commits as words, and as JSON with the same keys in each record."""
    words = [
        f"- {commit['date']}: {commit['author']} wrote \"{commit['title']}\" ({commit['hash'][:12]})"
        for commit in chosen
    ]
    values = [
        {
            "commit_id": commit["hash"][:12],
            "author_name": commit["author"],
            "committed_on": commit["date"],
            "area": commit["title"].partition(":")[0],
            "title": commit["title"],
            "is_merge": False,
        }
        for commit in chosen
    ]
    prompt = "\n".join(words) + "\n\nWrite these commits as a JSON array of objects.\n\nJSON:\n"
    return text("json", prompt, json.dumps(values, indent=2, ensure_ascii=False))


def continuation(repository, revision, path, kind, choose):
    """A file up to a line, and the lines after it."""
    whole = content(repository, revision, path)
    if whole is None or len(whole) < 3 * OUTPUT[0]:
        return None
    lines = whole.splitlines(keepends=True)
    first = choose.randrange(len(lines) // 4, max(len(lines) * 3 // 4, len(lines) // 4 + 1))
    prompt, output = "".join(lines[:first])[-PROMPT:], "".join(lines[first:])[: OUTPUT[1]]
    return text(kind, prompt, output) if prompt else None


def of_commits(repository, history, kind, make, count, choose):
    """Texts of a kind from commits in a random order, one of a commit."""
    found = []
    for commit in choose.sample(history, len(history)):
        if len(found) == count:
            break
        paths = modified(repository, commit)
        made = make(repository, commit, choose.choice(paths)) if paths else None
        found += [made] if made else []
    report(kind, found, count)
    return found


def of_files(repository, revision, kind, endings, count, choose):
    """Continuations of files in a random order."""
    listed = git(repository, "ls-tree", "-r", "-z", "--name-only", revision) or ""
    paths = sorted(path for path in listed.split("\0") if path.endswith(endings))
    found = []
    for path in choose.sample(paths, len(paths)):
        if len(found) == count:
            break
        made = continuation(repository, revision, path, kind, choose)
        found += [made] if made else []
    report(kind, found, count)
    return found


def of_records(history, count, choose):
    found = []
    for _ in range(20 * count):
        if len(found) == count:
            break
        made = records(choose.sample(history, min(len(history), choose.randrange(4, 9))))
        found += [made] if made else []
    report("json", found, count)
    return found


def report(kind, found, count):
    print(f"{kind}: {len(found)} of {count}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", help="folder of a git repository with its history")
    parser.add_argument("output", help="the file to write, JSON lines")
    parser.add_argument("--revision", default="HEAD", help="the newest commit to use")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=32, help="texts of each kind")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error(f"--count is {arguments.count}, must be at least 1")
    repository, count = arguments.repository, arguments.count
    history = commits(repository, arguments.revision)

    def choose(kind):
        """A separate generator, so that a kind does not depend on the others."""
        return random.Random(f"{arguments.seed} {kind}")

    texts = []
    for kind, make in (("edit", edit), ("diff", diff)):
        texts += of_commits(repository, history, kind, make, count, choose(kind))
    texts += of_records(history, count, choose("json"))
    texts += of_files(repository, arguments.revision, "prose", PROSE, count, choose("prose"))
    texts += of_commits(repository, history, "message", message, count, choose("message"))
    texts += of_files(repository, arguments.revision, "code", CODE, count, choose("code"))
    with open(arguments.output, "w", encoding="utf-8") as file:
        for made in texts:
            file.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

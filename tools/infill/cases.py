"""The calls of `/infill`, with fields as editors send them."""

CODE = '''\
def fibonacci(count: int) -> list[int]:
    """Returns the first `count` Fibonacci numbers."""
    numbers = [0, 1]
    while len(numbers) < count:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:count]


class Account:
    def __init__(self, owner, balance=0.0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        return self.balance
'''
HEADER = "#include <stdint.h>\n\n/* 2026-11-30, v1.25 */\nint32_t sum(const int32_t *values, size_t count);\n"
WHITE = "\tif (x) {\r\n\t\ty = 10;  \r\n\r\n\r\n        z  =   200;\n\n\n    }\n \n"
SCRIPTS = (
    "# Größe, naïve café: привет мир, 你好世界, こんにちは, 안녕하세요, שלום, नमस्ते, 😀👩‍💻 "
    "½ → ∑\u00a0·\u3000end"
)
# NFC makes the second of the first.
DECOMPOSED, COMPOSED = "e\u0301 A\u030a o\u0308 n\u0303", "\u00e9 \u00c5 \u00f6 \u00f1"
LINE = "<|fim_middle|><fim_middle><｜fim▁end｜> <MID>[SUFFIX]"
MARKS = (
    "<|fim_prefix|><|fim_suffix|><|fim_middle|><|fim_pad|><|repo_name|><|file_sep|> <fim_prefix><fim_suffix>"
    "<fim_middle><fim_pad><reponame><filename> <｜fim▁begin｜><｜fim▁hole｜><｜fim▁end｜> <PRE> <SUF> <MID> <EOT>"
    " [PREFIX][SUFFIX][MIDDLE] <s></s><unk><bos><eos><|endoftext|><|im_start|><|im_end|><|file_separator|>"
)
USER_DEFINED = "<tool_call>{}</tool_call> <h1>ö ü</h1>\n\n\n    if"


def call(prefix, suffix, prompt="", files=None, **fields):
    """A call; `files` are pairs of name and text, or texts without a name."""
    body = {"input_prefix": prefix, "input_suffix": suffix, "prompt": prompt, "n_predict": 0, **fields}
    if files is not None:
        names = ("filename", "text")
        body["input_extra"] = [{"text": file} if isinstance(file, str) else dict(zip(names, file)) for file in files]
    return body


def same():
    """The calls whose prompts are the same in this engine, by name."""
    lines = CODE.splitlines(keepends=True)
    before, after = "".join(lines[:4]), "".join(lines[5:9])
    return {
        "prefix and suffix": call(before, after),
        "a line before the cursor": call(before, after, "        numbers."),
        "no files": call(before, "\n", "", []),
        "empty prefix": call("", after),
        "empty suffix": call(before, ""),
        "only a line": call("", "", "return "),
        "nothing": call("", ""),
        "one file": call(before, "\n", "    ", [("sum.h", HEADER)]),
        "a file without a name": call("x = ", "\n", "", [HEADER]),
        "several files": call("x = ", "\n", "fib", [
            ("src/größe/你好.py", before), ("a b.h", HEADER), ("", "y"), ("empty", ""),
        ]),
        "white space": call(WHITE, WHITE, "  \t", [(" \t.c", WHITE)]),
        "blanks at the edges": call("x = ", " + y ", " ", [("f", " ")]),
        "scripts": call(SCRIPTS, SCRIPTS, "你", [("é.txt", SCRIPTS)]),
        "marks are letters": call(MARKS, "<|fim_middle|> <MID>", "", [
            ("<|file_sep|>.c", "<fim_prefix> <｜fim▁begin｜>[PREFIX]"),
        ]),
        "marks in the prefix": call(LINE, "\n"),
        "composed": call(COMPOSED, COMPOSED, COMPOSED),
        "user-defined tokens": call(USER_DEFINED, USER_DEFINED, "", [(USER_DEFINED, USER_DEFINED)]),
        "two tokens of output": call(before, "\n", "        ", n_predict=2, temperature=0),
    }


def different():
    """The calls whose prompts this engine makes differently for some families, by name."""
    return {
        "marks in the line": call("", "\n", LINE),
        "not composed": call(DECOMPOSED, DECOMPOSED, DECOMPOSED),
    }


def cut():
    """The calls whose prompts llama.cpp cuts if its batch is small, by name."""
    return {
        "long prefix": call(CODE, "\n", "        numbers."),
        "long suffix": call("x = ", CODE),
        "long files": call(CODE, CODE, "x", [("a.py", CODE), ("b.h", HEADER)]),
    }

"""Tests of embeddings, of Ollama's documented curl lines and of Copilot's discovery, on a server with real weights."""

import json
import math
import subprocess

import ollama
from langchain_ollama import OllamaEmbeddings
from world import URL, World

FORM = "application/x-www-form-urlencoded"
# Bodies of the curl lines in Ollama's documentation of its API, by path. Those of embeddings have other models there.
DOCUMENTED = [
    ("generate", '{ "model": "MODEL", "prompt": "Why is the sky blue?" }'),
    ("generate", '{ "model": "MODEL", "prompt": "Why is the sky blue?", "stream": false }'),
    ("generate", '{ "model": "MODEL", "prompt": "[INST] why is the sky blue? [/INST]", "raw": true, "stream": false }'),
    ("generate", '{ "model": "MODEL", "prompt": "Why is the sky blue?", "options": { "seed": 123 }, "stream": false }'),
    (
        "generate",
        '{ "model": "MODEL", "prompt": "Why is the sky blue?", "stream": false, "options": { "num_keep": 5, "seed": 42, '
        '"num_predict": 100, "draft_num_predict": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7, '
        '"repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5, '
        '"frequency_penalty": 1.0, "penalize_newline": true, "stop": ["\\n", "user:"], "numa": false, '
        '"num_ctx": 1024, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "use_mmap": true, "num_thread": 8 } }',
    ),
    ("generate", '{ "model": "MODEL" }'),
    ("generate", '{ "model": "MODEL", "keep_alive": 0 }'),
    ("chat", '{ "model": "MODEL", "messages": [ { "role": "user", "content": "why is the sky blue?" } ] }'),
    (
        "chat",
        '{ "model": "MODEL", "messages": [ { "role": "user", "content": "Hello!" } ], '
        '"options": { "seed": 101, "temperature": 0 } }',
    ),
    ("chat", '{ "model": "MODEL", "messages": [] }'),
    ("chat", '{ "model": "MODEL", "messages": [], "keep_alive": 0 }'),
    ("show", '{ "model": "MODEL" }'),
    ("embed", '{ "model": "MODEL", "input": "Why is the sky blue?" }'),
    ("embed", '{ "model": "MODEL", "input": ["Why is the sky blue?", "Why is the grass green?"] }'),
    ("embeddings", '{ "model": "MODEL", "prompt": "Here is an article about llamas..." }'),
]


class OllamaServer(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ollama = ollama.Client(host=URL)
        cls.addClassCleanup(cls.ollama.close)
        (listed,) = cls.ollama.list().models
        cls.model = listed.model

    def test_embeddings_have_length_one(self):
        embedded = self.ollama.embed(self.model, ["Act one.", "Act two."])
        self.assertEqual(len(embedded.embeddings), 2)
        for embedding in embedded.embeddings:
            self.assertAlmostEqual(math.hypot(*embedding), 1, places=3)
        short = self.ollama.embed(self.model, "Act one.", dimensions=8)
        self.assertEqual(len(short.embeddings[0]), 8)
        one = self.ollama.embeddings(self.model, "Act one.")
        self.assertEqual(list(one.embedding), list(embedded.embeddings[0]))
        client = OllamaEmbeddings(model=self.model, base_url=URL)
        self.assertEqual(client.embed_query("Act one."), list(embedded.embeddings[0]))
        self.assertEqual(len(client.embed_documents(["a", "b", "c"])), 3)

    def test_documented_curl_lines(self):
        for path, body in DOCUMENTED:
            with self.subTest(path=path, body=body):
                body = body.replace("MODEL", self.model)
                # Without `-H`, curl declares a form, as in the documentation.
                curl = ["curl", "--silent", "--fail", f"{URL}/api/{path}", "-d", body]
                printed = subprocess.run(curl, check=True, capture_output=True, text=True).stdout
                *parts, last = [json.loads(line) for line in printed.splitlines()]
                self.assertTrue(last.get("done", True), last)
                self.assertFalse(any(part["done"] for part in parts))

    def test_a_browsers_form_is_refused(self):
        body = json.dumps({"model": self.model, "prompt": "a"})
        for header in ({"Origin": URL}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            for kind in (FORM, "text/plain"):
                response = self.http.post("/api/generate", content=body, headers={"Content-Type": kind, **header})
                self.assertEqual(response.status_code, 415, header)
                self.assertIn("application/json", response.json()["error"])

    def test_copilots_discovery(self):
        version = self.http.get("/api/version").json()["version"]
        numbers = [int(number) for number in version.split("-")[0].split(".")]
        self.assertGreaterEqual(numbers, [0, 6, 4])
        (listed,) = self.http.get("/api/tags").json()["models"]
        shown = self.http.post("/api/show", json={"model": listed["model"]}).json()
        info = shown["model_info"]
        architecture = info["general.architecture"]
        self.assertGreater(info[f"{architecture}.context_length"], 0)
        self.assertIsInstance(info["general.basename"], str)
        self.assertIn("completion", shown["capabilities"])
        # It then chats on OpenAI's endpoint, with the name from the list.
        chat = self.client.chat.completions.create(
            model=listed["model"], messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        self.assertEqual(chat.usage.completion_tokens, 4)

    def test_the_root_answers_get_and_head(self):
        root = self.http.get("/")
        self.assertEqual((root.status_code, root.text), (200, "Ollama is running"))
        self.assertEqual(self.http.head("/").status_code, 200)

"""Tests of pictures in Ollama's chats, with the unmodified client."""

import ollama
from pictures import Pictures, data_url, encoded, png
from world import URL


class Chats(Pictures):
    def test_files_and_base64_are_one_picture(self):
        client = ollama.Client(host=URL)
        model = client.list().models[0].model
        before = self.n_encoded()
        texts = set()
        for image in (png(71), encoded(71)):
            message = {"role": "user", "content": "Which one?", "images": [image]}
            answer = client.chat(model=model, messages=[message], options={"num_predict": 6, "temperature": 0})
            texts.add(answer.message.content)
            parts = [{"type": "image_url", "image_url": {"url": data_url(71)}}, {"type": "text", "text": "Which one?"}]
            self.assertEqual(answer.prompt_eval_count, len(self.tokens([{"role": "user", "content": parts}])))
        self.assertEqual(len(texts), 1)
        self.assertEqual(self.n_encoded(), before + 1)

"""Writes tests/fixtures/chat_templates/tools.jsonl: prompts with tools as transformers renders them.

Run: python tools.py ../../tests/fixtures (needs jinja2 3.1.6).
"""

import json
import sys
from pathlib import Path

from environment import render

CHATML = (
    "{%- if tools %}<|im_start|>system\n{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INDENTED = (
    "{{ bos_token }}{% if tools is not none %}{{ tools | tojson(indent=4) }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)
BY_FIELD = (
    "{% for tool in tools %}{% set f = tool.function %}## {{ f.name }}{% if f.description %}: {{ f.description }}{% endif %}\n"
    "{% if f.parameters is defined and f.parameters.properties %}{% for name, p in f.parameters.properties | items %}"
    "- {{ name }}: {{ p.type }}{{ ' ' ~ p.enum if p.enum is defined }}{{ ' = ' ~ p.default if p.default is defined }}"
    "{% if name in (f.parameters.required or []) %} (required){% endif %}\n{% endfor %}{% endif %}"
    "{% if f.strict is defined %}strict {{ f.strict }}\n{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
TOOLS = [
    '[{"type": "function", "function": {"name": "f", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}}]',
    '[{"type":"function","function":{"name":"f"}}]',
    '[{"type":"function","function":{"name":"f","description":null}}]',
    '[{"type":"function","function":{"name":"f","description":null,"parameters":null}}]',
    '[{"type":"function","function":{"name":"f","description":"d","strict":true,"parameters":{"type":"object","properties":{}}}}]',
    '[{"type":"function","function":{"strict":false,"parameters":{"type":"object"},"name":"f"}}]',
    '[{"function":{"parameters":{"required":["b"],"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}},"description":"x","name":"f"},"type":"function"}]',
    '[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":123456789012345678901234567890,"minimum":-9223372036854775809,"default":1.0}}}}}]',
    '[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"number","enum":[1.50,1e2,1E-7,0.1,-0.0,-0,1e16,18446744073709551616]}}}}}]',
    '[{"type":"function","x-cache":{"a":[1,null]},"function":{"name":"f","x-extra":"yes","parameters":{"type":"object","additionalProperties":false}}}]',
    '[{"type":"function","function":{"name":"f","description":"é <b> & \\"q\\" \\u00e9 \\n \\u2028 \\ud83d\\ude00 /","parameters":{"type":"object","properties":{"ü":{"type":"string"}}}}}]',
    '[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","parameters":{}}},{"type":"function","function":{"name":"h","description":""}}]',
    '[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":["string","null"],"default":null},"items":{"type":"array","items":{"type":"object","properties":{"x":{"enum":[true,false,null,"x"]}}}}}}}}]',
    '[{"type":"function","function":{"name":"f","parameters":{"$defs":{"T":{"type":"string"}},"type":"object","properties":{"t":{"$ref":"#/$defs/T"}},"required":[]}}}]',
    '[{"type":"function","function":{"name":"f","description":"one","description":"two","parameters":{"type":"object","properties":{"a":{},"b":{},"a":{"type":"null"}}}}}]',
    '[]',
]
CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 < 3 & \"so\"?"}],
]


def main(fixtures):
    sources = {"qwen3-agents": (fixtures / "qwen3-agents/chat_template.jinja").read_text()}
    sources |= {source: source for source in [CHATML, INDENTED, BY_FIELD]}
    with open(fixtures / "chat_templates/tools.jsonl", "w", encoding="utf-8") as file:
        for name, source in sources.items():
            for tools in TOOLS:
                for messages in CHATS:
                    variables = {
                        "messages": messages,
                        "tools": json.loads(tools),
                        "documents": None,
                        "add_generation_prompt": True,
                        "bos_token": "<s>",
                        "eos_token": "</s>",
                    }
                    output, error = render(source, variables)
                    row = {"template": name, "messages": messages, "tools": tools}
                    row |= {"error": error} if output is None else {"output": output}
                    print(json.dumps(row, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Shared by the tests of agents: the tools that the scripted model calls, and the lines that it replies with."""

import json
from pathlib import Path
from typing import Optional

from pydantic import BaseModel

# The server under test replies with these lines.
LINES = dict(json.loads(Path(__file__).with_name("lines.json").read_text()))
MODEL = "scripted"
LISBON = {"city": "Lisbon", "days": 3}
NOTE = 'a "good" one, zwölf €'


class Play(BaseModel):
    """A play of the season."""

    title: str
    acts: int
    tags: list[str]
    sequel: Optional[str]


HAMLET = Play(title="Hamlet", acts=5, tags=["tragedy", "Denmark"], sequel=None)


def function(name, properties=None, **more):
    """A tool as OpenAI's chat completions declare it; without properties it takes no parameters."""
    declared = {"name": name, "description": f"The {name} of the theatre."}
    if properties is not None:
        declared["parameters"] = {
            "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
        }
    return {"type": "function", "function": declared | more}


WEATHER = function("weather", {"city": {"type": "string"}, "days": {"type": "integer"}})
SEAT = function("seat", {"row": {"type": "integer"}, "note": {"type": "string"}})
CLOCK = function("clock")
TOOLS = [WEATHER, SEAT, CLOCK]
# Results of the tools, by name.
RESULTS = {"weather": json.dumps({"sky": "clear"}), "seat": json.dumps({"booked": 4})}


def user(text):
    return {"role": "user", "content": text}

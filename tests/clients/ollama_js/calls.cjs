// Calls the server with Ollama's library for JavaScript, and prints one JSON object with all answers.
const { Ollama } = require("ollama");

const ollama = new Ollama({ host: process.env.SOUFFLEUR_URL });
const user = (content) => ({ role: "user", content });
const seat = {
  type: "function",
  function: {
    name: "find_seat",
    description: "Finds a free seat.",
    parameters: { type: "object", properties: { row: { type: "integer" } }, required: ["row"] },
  },
};

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.name, message: error.message, status: error.status_code };
  }
  return null;
}

async function streamed(model) {
  const parts = [];
  for await (const part of await ollama.chat({ model, messages: [user("Hello")], stream: true })) {
    parts.push(part);
  }
  return parts;
}

async function main() {
  const list = await ollama.list();
  const model = list.models[0].name;
  const chat = (content, more) => ollama.chat({ model, messages: [user(content)], ...more });
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const printed = {
    version: await ollama.version(),
    list,
    running: await ollama.ps(),
    shown: await ollama.show({ model }),
    chat: await chat("Hello"),
    streamed: await streamed(model),
    called: await chat("Which seat?", { tools: [seat] }),
    thought: await chat("Think first.", { think: true }),
    formatted: await chat("Name a city.", { format: schema }),
    generated: await ollama.generate({ model, prompt: "Hello", options: { num_predict: 2 } }),
    embedded: await ollama.embed({ model, input: ["a", "b"] }),
    unknown: await failure(() => ollama.chat({ model: "other", messages: [user("Hello")] })),
    image: await failure(() => chat("Hello", { messages: [{ ...user("a"), images: ["iVBO"] }] })),
  };
  console.log(JSON.stringify(printed));
}

main();

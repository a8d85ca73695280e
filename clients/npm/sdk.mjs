// The npm packages `openai` and `ai` (Vercel AI SDK). Reports checks like ../programs/checks.py.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_generateSpeech as generateSpeech } from "ai";
import OpenAI from "openai";

const [url] = process.argv.slice(2);
const TEXT = "Hello from a client. It speaks two sentences.";

async function check(what, work) {
  let error = null;
  try {
    await work();
  } catch (failure) {
    error = `${failure.name}: ${failure.message}`.slice(0, 300);
  }
  console.log(JSON.stringify({ check: what, error }));
}

function expectBytes(data, least) {
  if (data.length < least) throw new Error(`${data.length} bytes, expected at least ${least}`);
}

const versionOf = (name) => JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version;
console.log(JSON.stringify({ package: "openai, ai (npm)", version: `${versionOf("openai")}, ${versionOf("ai")}` }));
await check("openai", async () => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const answer = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: TEXT, response_format: "wav" });
  expectBytes(Buffer.from(await answer.arrayBuffer()), 48_000);
});
await check("ai (Vercel AI SDK)", async () => {
  const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const { audio } = await generateSpeech({
    model: openai.speech("gpt-4o-mini-tts"),
    text: TEXT,
    voice: "alloy",
    instructions: "Calm.",
    outputFormat: "wav",
  });
  expectBytes(audio.uint8Array, 48_000);
});

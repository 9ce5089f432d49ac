// The official Node SDKs' accumulators over every recorded stream, as it is and through Weir. Run by
// tests/sdk/promises, which tells the recordings on standard input and reads the verdict from standard output.

import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { raw, url, key: apiKey, recordings } = JSON.parse(readFileSync(0, "utf8"));
const options = { apiKey, maxRetries: 0, timeout: 60_000 };

/** What the SDK's own accumulator makes of a stream: its model's name and the output tokens, if told. */
async function accumulate(base, { protocol, model, text }) {
  const messages = [{ role: "user", content: text }];
  const oai = new OpenAI({ baseURL: `${base}/v1`, ...options });
  if (protocol === "chat") {
    const stream = oai.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    const final = await stream.finalChatCompletion();
    const { message } = final.choices[0];
    const said = message.content || message.tool_calls?.length || message.refusal || message.reasoning_content;
    if (!said) throw new Error("nothing was said");
    return { model: final.model, tokens: final.usage?.completion_tokens };
  }
  if (protocol === "responses") {
    const final = await oai.responses.stream({ model, input: text }).finalResponse();
    if (!final.output.length) throw new Error("no output");
    return { model: final.model, tokens: final.usage?.output_tokens };
  }
  const ant = new Anthropic({ baseURL: base, ...options });
  const final = await ant.messages.stream({ model, messages, max_tokens: 100 }).finalMessage();
  if (!final.stop_reason) throw new Error("no stop reason");
  return { model: final.model, tokens: final.usage.output_tokens };
}

const attempt = (base, recording) =>
  accumulate(base, recording).then((got) => ({ got }), (error) => ({ error }));

const failed = {};
const rejected = [];
for (const recording of recordings) {
  if ((await attempt(raw, recording)).error) rejected.push(recording.file);
  const { got, error } = await attempt(url, recording);
  const good = recording.ends_in_error
    ? error instanceof OpenAI.APIError && error.code === "stream_interrupted"
    : recording.unfinished
    ? /missing finish_reason/.test(error?.message)
    : got?.model === recording.model && (recording.protocol !== "chat" || !recording.has_usage || got.tokens !== undefined);
  if (!good) failed[recording.file] = error ? `${error.constructor.name}: ${error.message}` : JSON.stringify(got);
}
process.stdout.write(JSON.stringify({ failed, rejected }));

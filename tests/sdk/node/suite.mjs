// The official Node SDKs as clients. Run by tests/sdk/run; WEIR_URL and WEIR_KEY say where.
// Every entry of `tests` is one test; all run at once, since some wait for silences.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { WEIR_URL: url, WEIR_KEY: apiKey, WEIR_FILTER: filter = "" } = process.env;
const options = { maxRetries: 0, timeout: 60_000 };
const oai = new OpenAI({ baseURL: `${url}/v1`, apiKey, ...options });
const ant = new Anthropic({ baseURL: url, apiKey, ...options });

const ask = [{ role: "user", content: "say hello" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const chatTool = { type: "function", function: { name: "get_weather", parameters } };
const responsesTool = { type: "function", name: "get_weather", parameters, strict: false };
const messagesTool = { name: "get_weather", input_schema: parameters };

const chat = (model, more = {}) => oai.chat.completions.create({ model, messages: ask, ...more });
const responses = (model, more = {}) => oai.responses.create({ model, input: "say hello", ...more });
const messages = (model, more = {}) => ant.messages.create({ model, messages: ask, max_tokens: 200, ...more });

/** All events of a stream that is still to be opened. */
async function all(opening) {
  const events = [];
  for await (const event of await opening) events.push(event);
  return events;
}

const chatText = (chunks) => chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta.content ?? "").join("");
const messagesText = (events) => events.map((event) => event.delta?.text ?? "").join("");

/** The error that a promise rejects with; it must be of this very type. */
async function rejects(kind, promise) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof kind, `${error?.constructor?.name} instead of ${kind.name}: ${error}`);
    return error;
  }
  assert.fail(`no ${kind.name} was thrown`);
}

const tests = {
  async chat_json() {
    const reply = await chat("demo-fast");
    assert.ok(reply.choices[0].message.content);
    assert.equal(reply.choices[0].finish_reason, "stop");
    assert.ok(reply.usage.prompt_tokens > 0 && reply.usage.completion_tokens > 0);
    assert.equal(reply._request_id.length, 36);
  },
  async chat_stream() {
    const chunks = await all(chat("demo-fast", { stream: true }));
    assert.ok(chunks.length > 3 && chatText(chunks));
    assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
    assert.ok(chunks.every((chunk) => chunk.choices.length > 0), "no usage chunk unless asked for");
  },
  async chat_stream_with_usage() {
    const chunks = await all(chat("demo-fast", { stream: true, stream_options: { include_usage: true } }));
    assert.ok(chunks.at(-1).usage.completion_tokens > 0);
    assert.equal(chunks.at(-1).choices.length, 0);
  },
  async chat_stream_helper() {
    const stream = oai.chat.completions.stream({ model: "demo-fast", messages: ask });
    const final = await stream.finalChatCompletion();
    assert.ok(final.choices[0].message.content);
  },
  async chat_tools() {
    const reply = await chat("demo-fast-tools", { tools: [chatTool] });
    assert.equal(reply.choices[0].message.tool_calls[0].function.name, "get_weather");
    const stream = oai.chat.completions.stream({ model: "demo-fast-tools", messages: ask, tools: [chatTool] });
    const call = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "get_weather");
    JSON.parse(call.function.arguments);
  },
  async chat_keepalives_change_nothing() {
    const shape = async (model) =>
      (await all(chat(model, { stream: true }))).flatMap((chunk) => chunk.choices.map((choice) => [choice.delta.content, choice.finish_reason]));
    const [silent, calm] = await Promise.all([shape("demo-silent"), shape("calm")]);
    assert.deepEqual(silent, calm);
  },
  async chat_early_answer() {
    assert.ok(chatText(await all(chat("demo-quiet", { stream: true }))));
  },
  async chat_error_event() {
    const error = await rejects(OpenAI.APIError, all(chat("demo-fast-error", { stream: true })));
    assert.ok(!(error instanceof OpenAI.APIConnectionError), error);
  },
  async chat_cut() {
    const error = await rejects(OpenAI.APIError, all(chat("demo-fast-cut", { stream: true })));
    assert.equal(error.code, "stream_interrupted");
    assert.match(error.message, /Stream interrupted/);
  },
  async chat_stall() {
    const error = await rejects(OpenAI.APIError, all(chat("stalls", { stream: true })));
    assert.equal(error.code, "stream_stalled");
  },
  async chat_big_and_burst() {
    assert.ok(chatText(await all(chat("demo-fast-big", { stream: true }))).length >= 1 << 20);
    assert.ok((await all(chat("demo-fast-burst", { stream: true }))).length >= 20_000);
  },

  async responses_json() {
    const reply = await responses("demo-fast");
    assert.ok(reply.output_text);
    assert.equal(reply.status, "completed");
    assert.ok(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0);
    assert.equal(reply._request_id.length, 36);
  },
  async responses_stream() {
    const events = await all(responses("demo-fast", { stream: true }));
    assert.equal(events[0].type, "response.created");
    assert.equal(events.at(-1).type, "response.completed");
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
  },
  async responses_stream_helper() {
    const stream = oai.responses.stream({ model: "demo-fast", input: "say hello" });
    assert.ok((await stream.finalResponse()).output_text);
  },
  async responses_tools() {
    const streamed = (await all(responses("demo-fast-tools", { tools: [responsesTool], stream: true }))).at(-1).response;
    for (const reply of [await responses("demo-fast-tools", { tools: [responsesTool] }), streamed]) {
      const call = reply.output.find((item) => item.type === "function_call");
      assert.equal(call.name, "get_weather");
      JSON.parse(call.arguments);
    }
  },
  async responses_keepalives_change_nothing() {
    const shape = async (model) => (await all(responses(model, { stream: true }))).map((event) => [event.type, event.delta]);
    const [silent, calm] = await Promise.all([shape("demo-silent"), shape("calm")]);
    assert.deepEqual(silent, calm);
  },
  async responses_early_answer() {
    assert.equal((await all(responses("demo-quiet", { stream: true }))).at(-1).type, "response.completed");
  },
  async responses_cut_is_a_failed_response() {
    const events = await all(responses("demo-fast-cut", { stream: true }));
    const last = events.at(-1);
    assert.equal(last.type, "response.failed");
    assert.deepEqual(last.response.error, { code: "server_error", message: "Response stream interrupted, please retry" });
    assert.equal(last.response.id, events[0].response.id);
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
  },

  async messages_json() {
    const reply = await messages("demo-fast");
    assert.ok(reply.content[0].text);
    assert.equal(reply.stop_reason, "end_turn");
    assert.ok(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0);
    assert.equal(reply._request_id.length, 36);
  },
  async messages_stream() {
    const events = await all(messages("demo-fast", { stream: true }));
    assert.equal(events[0].type, "message_start");
    assert.equal(events.at(-1).type, "message_stop");
    assert.ok(messagesText(events));
  },
  async messages_stream_helper() {
    const stream = ant.messages.stream({ model: "demo-fast", messages: ask, max_tokens: 200 });
    assert.ok((await stream.finalMessage()).content[0].text);
  },
  async messages_tools() {
    const more = { tools: [messagesTool] };
    const stream = ant.messages.stream({ model: "demo-fast-tools", messages: ask, max_tokens: 200, ...more });
    for (const reply of [await messages("demo-fast-tools", more), await stream.finalMessage()]) {
      const call = reply.content.find((block) => block.type === "tool_use");
      assert.equal(call.name, "get_weather");
      assert.equal(reply.stop_reason, "tool_use");
    }
  },
  async messages_thinking_stream() {
    const events = await all(messages("demo-fast-thinking", { stream: true }));
    assert.ok(events.some((event) => event.delta?.type === "thinking_delta"));
  },
  async messages_keepalives_change_nothing() {
    const shape = async (model) => (await all(messages(model, { stream: true }))).map((event) => [event.type, event.delta?.text]);
    const [silent, calm] = await Promise.all([shape("demo-silent"), shape("calm")]);
    assert.deepEqual(silent, calm);
  },
  async messages_early_answer() {
    assert.ok(messagesText(await all(messages("demo-quiet", { stream: true }))));
  },
  async messages_error_event() {
    const error = await rejects(Anthropic.APIError, all(messages("demo-fast-error", { stream: true })));
    assert.equal(error.error.type, "error");
  },
  async messages_cut() {
    const error = await rejects(Anthropic.APIError, all(messages("demo-fast-cut", { stream: true })));
    assert.deepEqual(error.error.error, { type: "api_error", message: "Response stream interrupted, please retry" });
  },
  async messages_count_tokens() {
    assert.ok((await ant.messages.countTokens({ model: "demo-fast", messages: ask })).input_tokens > 0);
  },

  async models() {
    assert.ok((await all(oai.models.list())).some((model) => model.id === "demo-fast"));
    assert.ok((await all(ant.models.list())).some((model) => model.id === "demo-fast"));
  },
  async errors_are_the_sdks_own() {
    for (const stream of [false, true]) {
      const kinds = [
        [OpenAI, (model, more) => chat(model, { stream, ...more })],
        [OpenAI, (model, more) => responses(model, { stream, ...more })],
        [Anthropic, (model, more) => messages(model, { stream, ...more })],
      ];
      for (const [sdk, call] of kinds) {
        const rows = [
          ["no-such-model", sdk.NotFoundError, 404],
          ["demo-400", sdk.BadRequestError, 400],
          ["demo-429", sdk.RateLimitError, 429],
          ["demo-500", sdk.InternalServerError, 500],
        ];
        for (const [model, kind, status] of rows) {
          const error = await rejects(kind, call(model));
          assert.equal(error.status, status);
          assert.ok(error.requestID, model);
        }
        await rejects(sdk.BadRequestError, call("demo-fast", { model: 7 }));
        assert.ok([502, 503].includes((await rejects(sdk.InternalServerError, call("demo-401"))).status));
      }
      const wrong = { ...options, apiKey: "wrong" };
      const noKey = new OpenAI({ baseURL: `${url}/v1`, ...wrong });
      await rejects(OpenAI.AuthenticationError, noKey.chat.completions.create({ model: "demo-fast", messages: ask, stream }));
      await rejects(OpenAI.AuthenticationError, noKey.responses.create({ model: "demo-fast", input: "x", stream }));
      const noKeyAnt = new Anthropic({ baseURL: url, ...wrong });
      const body = { model: "demo-fast", messages: ask, max_tokens: 5, stream };
      await rejects(Anthropic.AuthenticationError, noKeyAnt.messages.create(body));
    }
  },
  async failover_after_the_early_answer_goes_unnoticed() {
    // The first target dies after its prelude, seconds after Weir's own 200 and its keepalives.
    const [chunks, events, message, plain] = await Promise.all([
      all(chat("fails-over", { stream: true })),
      all(responses("fails-over", { stream: true })),
      all(messages("fails-over", { stream: true })),
      all(chat("demo-fast", { stream: true })),
    ]);
    assert.equal(chatText(chunks), chatText(plain));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
    assert.equal(events.at(-1).type, "response.completed");
    assert.equal(message.filter((event) => event.type === "message_start").length, 1);
    assert.equal(message.at(-1).type, "message_stop");
  },
  async death_after_the_early_answer_is_the_sdks_own_error() {
    const [chatError, events, error] = await Promise.all([
      rejects(OpenAI.APIError, all(chat("demo-silent-dies", { stream: true }))),
      all(responses("demo-silent-dies", { stream: true })),
      rejects(Anthropic.APIError, all(messages("demo-silent-dies", { stream: true }))),
    ]);
    assert.equal(chatError.code, "stream_interrupted");
    assert.ok(chatError.message.includes("Stream interrupted"), chatError.message);
    assert.deepEqual(events.map((event) => [event.type, event.sequence_number]), [["response.failed", 0]]);
    assert.equal(events[0].response.error.message, "Response stream interrupted, please retry");
    assert.ok(error.message.includes("Response stream interrupted, please retry"), error.message);
  },
};

const wanted = Object.entries(tests).filter(([name]) => name.includes(filter));
const results = await Promise.allSettled(wanted.map(([, test]) => test()));
const failed = results.flatMap((result, at) => (result.status === "rejected" ? [[wanted[at][0], result.reason]] : []));
for (const [name, reason] of failed) console.log(`node: ${name} FAILED\n${reason?.stack ?? reason}`);
const version = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
console.log(
  `node: ${wanted.length - failed.length} of ${wanted.length} passed (openai ${version("openai")}, @anthropic-ai/sdk ${version("@anthropic-ai/sdk")})`,
);
process.exit(failed.length || !wanted.length ? 1 : 0);

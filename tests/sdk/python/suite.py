"""The official Python SDKs as clients. Run by tests/sdk/run; WEIR_URL and WEIR_KEY say where.

Every function named `test_…` is one test; all run at once, since some wait for silences.
"""

import concurrent.futures
import os
import sys
import time
import traceback

import anthropic
import openai

URL = os.environ["WEIR_URL"]
KEY = os.environ["WEIR_KEY"]
FILTER = os.environ.get("WEIR_FILTER", "")

oai = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=60)
ant = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60)

ASK = [{"role": "user", "content": "say hello"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
MESSAGES_TOOL = {"name": "get_weather", "input_schema": PARAMETERS}


def raises(kind, call):
    """The exception that a call raises; it must be of this very type."""
    try:
        call()
    except Exception as error:  # noqa: BLE001: any other is the failure that is reported
        assert isinstance(error, kind), f"{type(error).__name__} instead of {kind.__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# ---------------------------------------------------------------- chat

def chat(model, **options):
    return oai.chat.completions.create(model=model, messages=ASK, **options)


def chat_text(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_chat_json():
    reply = chat("demo-fast")
    assert reply.choices[0].message.content and reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens > 0 and reply.usage.completion_tokens > 0
    assert len(reply._request_id) == 36, reply._request_id


def test_chat_stream():
    chunks = list(chat("demo-fast", stream=True))
    assert len(chunks) > 3 and chat_text(chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.choices for chunk in chunks), "no usage chunk unless asked for"


def test_chat_stream_with_usage():
    chunks = list(chat("demo-fast", stream=True, stream_options={"include_usage": True}))
    assert not chunks[-1].choices and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_chat_stream_helper():
    with oai.chat.completions.stream(model="demo-fast", messages=ASK) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content


def test_chat_tools():
    reply = chat("demo-fast-tools", tools=[CHAT_TOOL])
    call = reply.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and call.function.arguments.startswith("{")
    assert reply.choices[0].finish_reason == "tool_calls"


def test_chat_tools_stream():
    name, arguments, finish = None, "", None
    for chunk in chat("demo-fast-tools", tools=[CHAT_TOOL], stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name = call.function.name or name
                arguments += call.function.arguments or ""
    assert name == "get_weather" and arguments.startswith("{") and arguments.endswith("}"), (name, arguments)
    assert finish == "tool_calls", finish


def test_chat_thinking_stream():
    reasoning = ""
    for chunk in chat("demo-fast-thinking", stream=True):
        for choice in chunk.choices:
            extra = choice.delta.model_extra or {}
            reasoning += extra.get("reasoning_content") or extra.get("reasoning") or ""
    assert reasoning


def test_chat_keepalives_change_nothing():
    began = time.monotonic()
    def shape(model):
        return [(choice.delta.content, choice.finish_reason) for chunk in chat(model, stream=True) for choice in chunk.choices]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        silent, calm = pool.map(shape, ["demo-silent", "calm"])
    assert silent == calm and time.monotonic() - began > 5


def test_chat_early_answer():
    assert chat_text(chat("demo-quiet", stream=True))


def test_chat_error_event():
    error = raises(openai.APIError, lambda: list(chat("demo-fast-error", stream=True)))
    assert not isinstance(error, (openai.APIStatusError, openai.APIConnectionError)), error


def test_chat_cut():
    chunks = []
    error = raises(openai.APIError, lambda: chunks.extend(chat("demo-fast-cut", stream=True)))
    assert error.code == "stream_interrupted" and error.message == "Stream interrupted", error
    chunks = []
    def read():
        for chunk in chat("demo-fast-cut", stream=True):
            chunks.append(chunk)
    raises(openai.APIError, read)
    assert chat_text(chunks), "what came before the cut was delivered"


def test_chat_stall():
    error = raises(openai.APIError, lambda: list(chat("stalls", stream=True)))
    assert error.code == "stream_stalled", error


def test_chat_big_and_burst():
    assert len(chat_text(chat("demo-fast-big", stream=True))) >= 1 << 20
    assert len(list(chat("demo-fast-burst", stream=True))) >= 20_000


# ---------------------------------------------------------------- responses

def responses(model, **options):
    return oai.responses.create(model=model, input="say hello", **options)


def test_responses_json():
    reply = responses("demo-fast")
    assert reply.output_text and reply.status == "completed"
    assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0
    assert len(reply._request_id) == 36


def test_responses_stream():
    events = list(responses("demo-fast", stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_responses_stream_helper():
    with oai.responses.stream(model="demo-fast", input="say hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text


def test_responses_tools():
    for reply in [
        responses("demo-fast-tools", tools=[RESPONSES_TOOL]),
        list(responses("demo-fast-tools", tools=[RESPONSES_TOOL], stream=True))[-1].response,
    ]:
        call = next(item for item in reply.output if item.type == "function_call")
        assert call.name == "get_weather" and call.arguments.startswith("{")


def test_responses_keepalives_change_nothing():
    def shape(model):
        return [(event.type, getattr(event, "delta", None)) for event in responses(model, stream=True)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        silent, calm = pool.map(shape, ["demo-silent", "calm"])
    assert silent == calm


def test_responses_early_answer():
    assert list(responses("demo-quiet", stream=True))[-1].type == "response.completed"


def test_responses_cut_is_a_failed_response():
    events = list(responses("demo-fast-cut", stream=True))
    last = events[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error.code == "server_error"
    assert last.response.error.message == "Response stream interrupted, please retry"
    assert last.response.id == events[0].response.id
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_responses_stall_is_a_failed_response():
    last = list(responses("stalls", stream=True))[-1]
    assert last.type == "response.failed" and last.response.error.code == "server_error", last


# ---------------------------------------------------------------- messages

def messages(model, **options):
    return ant.messages.create(model=model, messages=ASK, max_tokens=200, **options)


def messages_text(events):
    return "".join(event.delta.text for event in events if event.type == "content_block_delta" and event.delta.type == "text_delta")


def test_messages_json():
    reply = messages("demo-fast")
    assert reply.content[0].text and reply.stop_reason == "end_turn"
    assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0
    assert len(reply._request_id) == 36


def test_messages_stream():
    events = list(messages("demo-fast", stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    assert messages_text(events)


def test_messages_stream_helper():
    with ant.messages.stream(model="demo-fast", messages=ASK, max_tokens=200) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text and final.usage.output_tokens > 0


def test_messages_tools():
    with ant.messages.stream(model="demo-fast-tools", messages=ASK, max_tokens=200, tools=[MESSAGES_TOOL]) as stream:
        streamed = stream.get_final_message()
    for reply in [messages("demo-fast-tools", tools=[MESSAGES_TOOL]), streamed]:
        call = next(block for block in reply.content if block.type == "tool_use")
        assert call.name == "get_weather" and isinstance(call.input, dict) and reply.stop_reason == "tool_use"


def test_messages_thinking_stream():
    kinds = {event.delta.type for event in messages("demo-fast-thinking", stream=True) if event.type == "content_block_delta"}
    assert "thinking_delta" in kinds, kinds


def test_messages_keepalives_change_nothing():
    def shape(model):
        return [(event.type, getattr(getattr(event, "delta", None), "text", None)) for event in messages(model, stream=True)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        silent, calm = pool.map(shape, ["demo-silent", "calm"])
    assert silent == calm


def test_messages_early_answer():
    assert messages_text(messages("demo-quiet", stream=True))


def test_messages_error_event():
    error = raises(anthropic.APIStatusError, lambda: list(messages("demo-fast-error", stream=True)))
    assert error.body["type"] == "error", error.body


def test_messages_cut():
    error = raises(anthropic.APIStatusError, lambda: list(messages("demo-fast-cut", stream=True)))
    assert error.body["error"] == {"type": "api_error", "message": "Response stream interrupted, please retry"}, error.body
    assert error.request_id and len(error.request_id) == 36


def test_messages_stall():
    error = raises(anthropic.APIStatusError, lambda: list(messages("stalls", stream=True)))
    assert error.body["error"]["type"] == "api_error", error.body


def test_messages_count_tokens():
    assert ant.messages.count_tokens(model="demo-fast", messages=ASK).input_tokens > 0


# ---------------------------------------------------------------- all

def test_models():
    assert "demo-fast" in {model.id for model in oai.models.list()}
    assert "demo-fast" in {model.id for model in ant.models.list()}
    assert oai.models.retrieve("demo-fast").id == ant.models.retrieve("demo-fast").id == "demo-fast"


def test_embeddings():
    assert oai.embeddings.create(model="demo-fast", input="x", encoding_format="float").data[0].embedding


def test_errors_are_the_sdks_own():
    no_key = openai.OpenAI(base_url=URL + "/v1", api_key="wrong", max_retries=0)
    no_key_ant = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
    for stream in [False, True]:
        for sdk, kind in [
            (openai, lambda model, **more: chat(model, stream=stream, **more)),
            (openai, lambda model, **more: responses(model, stream=stream, **more)),
            (anthropic, lambda model, **more: messages(model, stream=stream, **more)),
        ]:
            for model, wanted, status in [
                ("no-such-model", sdk.NotFoundError, 404),
                ("demo-400", sdk.BadRequestError, 400),
                ("demo-429", sdk.RateLimitError, 429),
                ("demo-500", sdk.InternalServerError, 500),
            ]:
                error = raises(wanted, lambda: kind(model))
                assert error.status_code == status and error.request_id, (model, error.request_id)
                assert "127.0.0.1" not in str(error), error
            error = raises(sdk.BadRequestError, lambda: kind("demo-fast", extra_body={"model": 7}))
            assert error.status_code == 400
            error = raises(sdk.InternalServerError, lambda: kind("demo-401"))
            assert error.status_code in (502, 503), "the operator's trouble is no 401"
        raises(openai.AuthenticationError, lambda: no_key.chat.completions.create(model="demo-fast", messages=ASK, stream=stream))
        raises(openai.AuthenticationError, lambda: no_key.responses.create(model="demo-fast", input="x", stream=stream))
        raises(anthropic.AuthenticationError, lambda: no_key_ant.messages.create(model="demo-fast", messages=ASK, max_tokens=5, stream=stream))


def test_first_event_overload():
    error = raises(openai.InternalServerError, lambda: chat("demo-fast-overloaded", stream=True))
    assert error.status_code >= 500
    error = raises(anthropic.APIStatusError, lambda: messages("demo-fast-overloaded", stream=True))
    assert error.status_code in (503, 529), error


def test_dies_in_the_prelude():
    raises(openai.InternalServerError, lambda: chat("demo-fast-dies", stream=True))
    raises(openai.InternalServerError, lambda: responses("demo-fast-dies", stream=True))
    raises(anthropic.InternalServerError, lambda: messages("demo-fast-dies", stream=True))


def test_failover_after_the_early_answer_goes_unnoticed():
    # The first target dies after its prelude, seconds after Weir's own 200 and its keepalives.
    assert chat_text(chat("fails-over", stream=True)) == chat_text(chat("demo-fast", stream=True))
    events = list(responses("fails-over", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed" and events[-1].response.id == events[0].response.id
    events = list(messages("fails-over", stream=True))
    assert [event.type for event in events].count("message_start") == 1 and events[-1].type == "message_stop"
    assert messages_text(events)


def test_death_after_the_early_answer_is_the_sdks_own_error():
    error = raises(openai.APIError, lambda: list(chat("demo-silent-dies", stream=True)))
    assert (error.code, error.message) == ("stream_interrupted", "Stream interrupted"), error
    [failed] = list(responses("demo-silent-dies", stream=True))
    assert failed.type == "response.failed" and failed.sequence_number == 0, failed
    assert (failed.response.error.code, failed.response.status) == ("server_error", "failed")
    assert failed.response.error.message == "Response stream interrupted, please retry"
    error = raises(anthropic.APIStatusError, lambda: list(messages("demo-silent-dies", stream=True)))
    assert error.body["error"] == {"type": "api_error", "message": "Response stream interrupted, please retry"}, error.body


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_") and FILTER in name]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=12) as pool:
        for name, future in [(name, pool.submit(test)) for name, test in tests]:
            try:
                future.result()
            except Exception:  # noqa: BLE001: a failed test is reported, whatever it raised
                failed += 1
                print(f"python: {name} FAILED\n{traceback.format_exc()}")
    print(f"python: {len(tests) - failed} of {len(tests)} passed (openai {openai.__version__}, anthropic {anthropic.__version__})")
    sys.exit(1 if failed or not tests else 0)


main()

"""Serve the OpenAI chat, Responses and Anthropic protocols over HTTP on this machine, for tests.

The server sends its prepared answers in order and records the requests. An answer may be a fault:
`{"status": 429}`, `{"drop": True}` (the connection ends in the middle of the stream), `{"stall":
seconds}`, `{"garble": b"..."}` (bytes in the middle that violate the protocol), `{"alive":
seconds}` (only keep-alive bytes for that time, before the first event and in the middle),
`{"silent": seconds}` (not even headers for that time).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any]
PIECE = 7
"""Number of characters in each streamed piece. It is small, so that tool calls arrive in parts."""


class Provider:
    """The server's address and the requests that it received."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.greeted: list[str] = []
        """Paths of the GET requests."""
        self.url = ""


@contextmanager
def serve(*answers: Answer, greeting: int = 404) -> Iterator[Provider]:
    """Start a server with prepared answers; yield its address and requests. `greeting`: status code
    for a GET request of a model's entry."""
    provider = Provider(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            provider.greeted.append(self.path)
            self._error({"status": greeting, "error": "no such key"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            provider.requests.append(body)
            number = min(len(provider.requests), len(provider.answers)) - 1
            answer = provider.answers[number]
            if "status" in answer:
                self._error(answer)
                return
            speak = next(s for path, s in SPEECH.items() if self.path.endswith(path))
            self._stream(list(speak(answer)), answer, done=speak is _openai)

        def _stream(self, events: list[Any], answer: Answer, done: bool) -> None:
            time.sleep(answer.get("silent", 0))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, event in enumerate(events):
                if number in (0, len(events) // 2):
                    self._keep_alive(answer.get("alive", 0), done)
                if number == len(events) // 2:
                    if answer.get("drop"):
                        self.close_connection = True
                        return
                    time.sleep(answer.get("stall", 0))
                    if "garble" in answer:
                        self._raw(answer["garble"])
                name = f"event: {event['type']}\n" if "type" in event else ""
                self._chunk(f"{name}data: {json.dumps(event)}\n\n")
            if done and not answer.get("quiet_end"):
                self._chunk("data: [DONE]\n\n")
            self._chunk("")

        def _keep_alive(self, seconds: float, comments: bool) -> None:
            """Send keep-alive bytes: SSE comments, or empty events."""
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                ping = 'event: ping\ndata: {"type": "ping"}\n\n'
                self._chunk(": keep-alive\n\n" if comments else ping)
                time.sleep(0.1)

        def _chunk(self, text: str) -> None:
            self._raw(text.encode())

        def _raw(self, raw: bytes) -> None:
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = (
                    True  # the client closed the connection, as some tests expect
                )

        def _error(self, answer: Answer) -> None:
            error = {"message": answer.get("error", "fault"), "type": "error"}
            if "code" in answer:
                error["code"] = answer["code"]
            raw = json.dumps({"type": "error", "error": error}).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            for name, value in answer.get("headers", {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore clients that close the connection; some tests expect it."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()


def _pieces(text: str) -> list[str]:
    return [text[i : i + PIECE] for i in range(0, len(text), PIECE)]


def _openai(answer: Answer) -> Iterator[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    more = answer.get("choice", {})

    def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **extra}
        return {**head, "choices": [choice], **answer.get("chunk", {})}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(answer.get("reasoning", "")):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(answer.get("text", "")):
        yield chunk({"content": piece})
    calls = answer.get("calls", [])
    for index, call in enumerate(calls):
        function = {"name": call["name"], "arguments": ""}
        start = {"index": index, "id": call["id"], "type": "function", "function": function}
        yield chunk({"tool_calls": [start]})
        for piece in _pieces(call["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, answer.get("finish", "tool_calls" if calls else "stop"), **more)
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    usage |= {"prompt_tokens_details": {"cached_tokens": 60}}
    usage |= {"completion_tokens_details": {"reasoning_tokens": 5}}
    yield {**head, "choices": [], "usage": usage}


def _anthropic(answer: Answer) -> Iterator[dict[str, Any]]:
    usage = {
        "input_tokens": 30,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 10,
        "output_tokens": 1,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": message}
    for index, block in enumerate(answer.get("blocks", [])):
        yield from _block(index, block)
    calls = any(b["type"] == "tool_use" for b in answer.get("blocks", []))
    stop = answer.get("finish", "tool_use" if calls else "end_turn")
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def _block(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty, deltas = dict(block), []
    match block["type"]:
        case "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": p} for p in _pieces(block["text"])]
        case "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty["input"] = {}
            deltas = [
                {"type": "input_json_delta", "partial_json": p} for p in _pieces(block["input"])
            ]
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _responses(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the events of the Responses protocol: reasoning, text and calls as items, each complete
    in its `done` event."""
    items: list[dict[str, Any]] = []
    if answer.get("reasoning"):
        summary = [{"type": "summary_text", "text": answer["reasoning"]}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary})
        items[-1]["encrypted_content"] = "sealed"
    if answer.get("text"):
        content = [{"type": "output_text", "text": answer["text"], "annotations": []}]
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        items.append(message | {"content": content})
    for number, call in enumerate(answer.get("calls", [])):
        named = {"call_id": call["id"], "name": call["name"], "arguments": call["arguments"]}
        items.append({"type": "function_call", "id": f"fc_{number}", **named})
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    response |= {"output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    number = 0

    def event(type: str, **fields: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        return {"type": type, "sequence_number": number, **fields}

    yield event("response.created", response=response | {"status": "in_progress"})
    for index, item in enumerate(items):
        where = {"output_index": index, "item_id": item["id"]}
        yield event("response.output_item.added", output_index=index, item=item)
        for kind, text in _deltas(item):
            more = {"summary_index": 0} if "summary" in kind else {"content_index": 0}
            more |= {"logprobs": []} if "output_text" in kind else {}
            for piece in _pieces(text):
                yield event(kind, **where, **more, delta=piece)
        yield event("response.output_item.done", output_index=index, item=item)
    if "failed" in answer:
        error = {"code": answer["failed"], "message": answer.get("error", "fault")}
        yield event("response.failed", response=response | {"status": "failed", "error": error})
        return
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    usage |= {"input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 5}}
    response |= {"output": items, "usage": usage}
    match answer.get("finish", "stop"):
        case "length":
            details = {"reason": "max_output_tokens"}
            ended = response | {"status": "incomplete", "incomplete_details": details}
            yield event("response.incomplete", response=ended)
        case "stop":
            yield event("response.completed", response=response | {"status": "completed"})


def _deltas(item: dict[str, Any]) -> list[tuple[str, str]]:
    match item["type"]:
        case "reasoning":
            return [("response.reasoning_summary_text.delta", item["summary"][0]["text"])]
        case "message":
            return [("response.output_text.delta", item["content"][0]["text"])]
        case _:
            return [("response.function_call_arguments.delta", item["arguments"])]


SPEECH = {"/messages": _anthropic, "/responses": _responses, "/completions": _openai}
"""Function that writes an answer in a protocol, by the end of the request's path."""

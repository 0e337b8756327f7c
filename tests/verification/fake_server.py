"""Start a server with OpenAI's paths on this machine, which answers from a model of ours or misbehaves."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.checkpoints.prefixes import OurEngine

Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Handler = Callable[[str, dict[str, Any], dict[str, str]], Reply | None]
"""Map the path, the body and the headers to a status, its content and more headers; None leaves it to the model.

Content is text, what JSON can hold, or an iterator of the bytes to send.
"""


@contextmanager
def serving(
    engine: OurEngine | None, handler: Handler | None = None, *, style: str = "llama.cpp", certificate: str = ""
) -> Iterator[str]:
    """Return the address of a server for the time of a block; `style` names the engine that its answers imitate.

    `certificate`: a .pem file with a key and a certificate, for https.
    """

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any]) -> None:
            found = None if handler is None else handler(self.path, body, dict(self.headers))
            status, content, *more = found or answer(engine, self.path, body, style)
            if not isinstance(content, Iterator):
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                more = [{"Content-Length": str(len(data)), **(more[0] if more else {})}]
                content = iter([data])
            self.send_response(status)
            for header in (more[0] if more else {}).items():
                self.send_header(*header)
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                for piece in content:
                    self.wfile.write(piece)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(engine: OurEngine, path: str, body: dict[str, Any], style: str) -> Reply:
    """Answer as a sound server does."""
    if path == "/v1/models":
        return 200, {"data": [{"id": "the-model", "owned_by": {"llama.cpp": "llamacpp"}.get(style, style)}]}
    if path == "/tokenize":
        return (404, "no such path") if style == "sglang" else (200, {"tokens": engine.token_ids(body["content"])})
    assert path == "/v1/completions"
    prompt, text = body["prompt"], engine.reader.tokenizer.decode
    steps = engine.generate(prompt, body["max_tokens"])

    def listed(top: Mapping[int, float]) -> list[dict[str, Any]]:
        return [{"id": token, "token": text([token]), "logprob": value} for token, value in top.items()]

    if style == "llama.cpp":
        places = [{"id": s.token, "token": text([s.token]), "top_logprobs": listed(s.top)} for s in steps]
        given: dict[str, Any] = {"content": places}
    elif style == "vllm":
        tokens = [f"token_id:{step.token}" for step in steps]
        each = [{f"token_id:{token}": value for token, value in step.top.items()} for step in steps]
        given = {"tokens": tokens, "top_logprobs": each}
    else:
        given = {"top_logprobs": [{text([token]): value for token, value in step.top.items()} for step in steps]}
    return 200, {"choices": [{"logprobs": given}], "usage": {"prompt_tokens": len(prompt)}}

"""Sample on a server that accepts token ids and returns token ids with their log-probabilities.

The server runs the policy on other GPUs than those that train or time. The URL selects one of two
protocols: vLLM's completions (`http://HOST:8000/v1`) or SGLang's own
(`http://HOST:30000/generate`).
Not covered: starting the server.
Invariant: the recorded ids are the server's, never re-tokenized text.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cuagent.training.engines.engine import EngineError, Request, Sampled

SGLANG = "/generate"
TIMEOUT_S = 1800.0
"""Longest wait in seconds for the answer to one request, which may queue behind many others."""
MOST_SEEDS = 1 << 63
"""Number of seeds that a server accepts."""
UNFILTERED = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling settings sent with each request. Without them both servers use the model's
generation_config.json, and the log-probabilities would belong to another distribution."""


class ServerEngine:
    """`Engine` that sends its requests to a server (vLLM or SGLang).

    `model`: name of the policy on the server (SGLang ignores it). `end`: id of the end-of-turn
    token.
    """

    needs_batches = False

    def __init__(self, url: str, model: str, end: int, concurrency: int = 64) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.end = end
        self.concurrency = concurrency

    def conversations(self) -> None:
        return None

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        with ThreadPoolExecutor(min(self.concurrency, len(requests))) as pool:
            return list(pool.map(self._ask, requests))

    def load(self, folder: Path) -> None:
        """Make the server load the weights of a Hugging Face folder. Server and client must see the
        folder at the same path. Raises EngineError."""
        if not can_reload(self.url):
            raise EngineError(
                f"{self.url}: only SGLang ({SGLANG}) can load new weights while it runs"
            )
        route = self.url.removesuffix(SGLANG) + "/update_weights_from_disk"
        answer = post(route, {"model_path": str(folder), "flush_cache": True})
        if answer.get("success") is not True:
            raise EngineError(f"{route}: {answer.get('message', 'no success')}")

    def _ask(self, request: Request) -> Sampled:
        try:
            found = self._generate(request) if can_reload(self.url) else self._complete(request)
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self.url}: no valid answer ({error!r})") from error
        if not found.ids or len(found.ids) != len(found.logprobs):
            raise EngineError(
                f"{self.url}: returned no token ids with log-probabilities; use "
                "vLLM 0.10.2 or later, or SGLang's /generate"
            )
        return found

    def _complete(self, request: Request) -> Sampled:
        body = {
            "model": self.model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed % MOST_SEEDS,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": [self.end],
            "include_stop_str_in_output": True,
            **UNFILTERED,
        }
        choice = post(self.url + "/completions", body)["choices"][0]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        ids = choice.get("token_ids") or ()
        return Sampled(tuple(ids), tuple(logprobs), choice["finish_reason"] == "length")

    def _generate(self, request: Request) -> Sampled:
        sampling = {
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "sampling_seed": request.seed % MOST_SEEDS,
            "stop_token_ids": [self.end],
            "no_stop_trim": True,
            **UNFILTERED,
        }
        prompt = list(request.prompt)
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        meta = post(self.url, body)["meta_info"]
        each = meta.get("output_token_logprobs") or ()  # [log-probability, id, text] of a token
        cut = meta["finish_reason"]["type"] == "length"
        return Sampled(tuple(e[1] for e in each), tuple(e[0] for e in each), cut)


def can_reload(url: str) -> bool:
    """Return True if the server at `url` (SGLang) can load new weights while it runs."""
    return url.rstrip("/").endswith(SGLANG)


def post(url: str, body: Mapping[str, Any]) -> Any:
    """Send `body` as JSON by HTTP POST; return the parsed JSON answer. Raises EngineError."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, kind), timeout=TIMEOUT_S
        ) as got:
            return json.load(got)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise EngineError(f"{url}: no valid answer ({error or type(error).__name__})") from error

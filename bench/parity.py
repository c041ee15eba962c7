"""The same requests to this server and to llama-server, one slot each: are the tokens the same?

bench/build_peer.sh
.venv/bin/python -m bench.parity [--only samplers|prompts]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench import servers
from bench.servers import Server
from engine.download import fetch_model

TOKENS = 24
STORY = "<|im_start|>user\nTell me a story about a fox and a crow.<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a land far away,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "Q: What is the boiling point of water?\nA:",
    "import numpy as np\n\n",
    "Translate to French: good morning ->",
    "The quick brown fox",
    "Roses are red,\nviolets are",
    "In 1969, the first man",
    "# Shopping list\n\n- milk\n- ",
    "Breaking news: scientists have discovered",
    '{"name": "Alice", "age":',
    "Ünïcödé tèxt and emoji 😀 are",
    "It was the best of times, it was",
    "SELECT name FROM users WHERE",
    "<|im_start|>user\nWhat is two plus two?<|im_end|>\n<|im_start|>assistant\n",
    STORY,
)
LIST_GRAMMAR = 'root ::= item+\nitem ::= "- " [a-z ]+ "\\n"'
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.2},
    {"temperature": 1.5},
    {"temperature": 3.0},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 100},
    {"top_k": 0},
    {"top_k": 0, "top_p": 0.5},
    {"top_k": 0, "top_p": 1.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.2},
    {"top_p": 0.1},
    {"top_p": 1.0},
    {"min_p": 0.0},
    {"min_p": 0.3},
    {"min_p": 0.3, "min_keep": 5},
    {"typical_p": 0.5},
    {"typical_p": 0.2, "top_k": 0},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 2.0, "temperature": 1.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01, "temperature": 1.2},
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 0.7, "dynatemp_exponent": 2.0},
    {"repeat_penalty": 1.3},
    {"repeat_penalty": 1.5, "repeat_last_n": 8},
    {"repeat_penalty": 1.1, "repeat_last_n": 0},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.8},
    {"frequency_penalty": -0.3, "presence_penalty": 0.4, "repeat_penalty": 1.1},
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_base": 2.0},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 16, "dry_sequence_breakers": ["\n", "."]},
    {"mirostat": 1},
    {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    {"mirostat": 2},
    {"mirostat": 2, "mirostat_tau": 8.0},
    {"samplers": ["temperature"]},
    {"samplers": ["top_k", "temperature"], "top_k": 10},
    {"samplers": ["temperature", "top_p", "min_p"], "temperature": 1.4},
    {"samplers": ["min_p", "temperature"]},
    {"samplers": ["top_k", "top_k", "temperature"], "top_k": 30},
    {"samplers": "kfypmt"},
    {"samplers": ["xtc", "top_k", "temperature"], "xtc_probability": 0.7},
    {"samplers": ["penalties", "temperature"], "repeat_penalty": 1.2},
    {"samplers": ["top_k", "penalties", "temperature"], "repeat_penalty": 1.4},
    {"samplers": ["top_k", "temperature", "adaptive_p"], "adaptive_target": 0.4},
    {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.6, "adaptive_decay": 0.5},
    {"logit_bias": [[28, False], [30, -5.0]]},
    {"logit_bias": [["fox", 3.0]]},
    {"logit_bias": {"crow": 2.5, "30": -1.0}},
    {"ignore_eos": True, "temperature": 1.8},
    {"grammar": LIST_GRAMMAR},
    {"grammar": LIST_GRAMMAR, "temperature": 1.5, "top_k": 0},
    {"grammar": 'root ::= ("yes" | "no" | "maybe") " " root | "end"', "temperature": 2.0},
    {"grammar": "root ::= [0-9]{8,12}", "repeat_penalty": 1.2},
    {"seed": 7, "temperature": 1.1, "top_k": 60, "min_p": 0.01, "repeat_penalty": 1.05},
    {"stop": ["the"], "temperature": 0.9},
)


def main() -> None:
    """Run both servers and compare; the exit code is the number of differences, at most 99."""
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("samplers", "prompts"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    servers.end_on_terminate()
    settings = servers.Settings(fetch_model("smollm2"), args.threads, 1, 2048)
    logs = Path(tempfile.mkdtemp(prefix="llamarada-parity-"))
    requests = [request for request in _requests() if args.only in (None, request[0])]
    with (
        Server("ours", servers.ours(settings, ""), logs / "ours.log") as ours,
        Server("llama-server", servers.peer(settings, ""), logs / "peer.log") as peer,
    ):
        wrong = [body for _, body in requests if not _same(ours, peer, body)]
    print(f"{len(requests) - len(wrong)} of {len(requests)} requests gave the same tokens")
    sys.exit(min(len(wrong), 99))


def _requests() -> list[tuple[str, dict[str, Any]]]:
    common = {"n_predict": TOKENS, "return_tokens": True, "cache_prompt": False}
    prompts = [("prompts", {**common, "prompt": prompt, "temperature": 0}) for prompt in PROMPTS]
    samplers = [("samplers", {**common, "prompt": STORY, "seed": 42, **sampling}) for sampling in SAMPLINGS]
    return prompts + samplers


def _same(ours: Server, peer: Server, body: dict[str, Any]) -> bool:
    first, second = _ask(ours, body), _ask(peer, body)
    fields = ("tokens", "content", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated")
    different = [name for name in fields if first.get(name) != second.get(name)]
    if different:
        asked = {key: value for key, value in body.items() if key not in ("n_predict", "return_tokens")}
        print(f"differs in {', '.join(different)}: {json.dumps(asked)}")
        for name in different:
            print(f"  ours {json.dumps(first.get(name))}\n  peer {json.dumps(second.get(name))}")
    return not different


def _ask(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{server.port}/completion", json.dumps(body).encode())
    with urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


if __name__ == "__main__":
    main()

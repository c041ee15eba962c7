"""What constraints cost: tokens/s with each against tokens/s without, on one running server, in alternation.

.venv/bin/python -m bench.structured --rounds 5 --markdown
"""

import argparse
import asyncio
import shlex
import shutil
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import servers, table
from bench.load import Load, drive
from bench.servers import Server
from engine.download import fetch_model

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["author", "editor", "reader"]},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "role", "active"],
}
FIXED_KEYS = [
    "customer_identification_number",
    "preferred_delivery_address_is_confirmed",
    "newsletter_subscription_enabled",
    "outstanding_balance_in_cents",
    "loyalty_programme_membership_level",
    "date_of_last_successful_login",
]
RECORDS_GBNF = r"""
root ::= "[" record (", " record)* "]"
record ::= "{\"name\": " string ", \"age\": " [1-9] [0-9]? ", \"active\": " ("true" | "false") "}"
string ::= "\"" [^"\\\x00-\x1F]{1,30} "\""
"""

# Name, clients, and what is added to every request.
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    (
        "json_schema, fixed keys",
        1,
        {
            "json_schema": {
                "type": "object",
                "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in FIXED_KEYS},
                "required": FIXED_KEYS,
            }
        },
    ),
    ("json_schema", 1, {"json_schema": {"type": "array", "items": RECORD, "minItems": 40}}),
    ("json_schema", 8, {"json_schema": {"type": "array", "items": RECORD, "minItems": 40}}),
    ("grammar", 8, {"grammar": RECORDS_GBNF}),
    ("regex", 8, {"regex": "([A-Z][a-z]{1,12}( [a-z]{1,12}){2,9}\\. ){40}"}),
    ("n_probs 20", 8, {"n_probs": 20}),
)


def main() -> None:
    """Start the server, measure, print."""
    args = _parse()
    servers.end_on_terminate()
    servers.warn_if_busy()
    settings = servers.Settings(args.model or fetch_model("smollm2"), args.threads, 8, args.context)
    command = shlex.split(args.ours_cmd) if args.ours_cmd else servers.ours(settings, args.ours_args)
    logs = Path(tempfile.mkdtemp(prefix="llamarada-bench-"))
    with Server("ours", command, logs / "ours.log") as server:
        ratios = asyncio.run(_measure(server.port, args))
    shutil.rmtree(logs)  # kept when something failed
    rows = [
        (str(clients), name, table.number(statistics.median(rates)), table.number(statistics.median(gains), 3))
        for (clients, name), (rates, gains) in ratios.items()
    ]
    print(table.render(("clients", "constraint", "tokens/s", "of unconstrained"), rows, args.markdown))


async def _measure(port: int, args: argparse.Namespace) -> dict[tuple[int, str], tuple[list[float], list[float]]]:
    """Rates and ratios of each case; every measurement has an unconstrained one right before it."""
    results: dict[tuple[int, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for _, clients, extra in CASES:
        await drive(port, Load(clients, requests=1, predict=16, extra=extra | _ends(extra)))  # compiles it
    for number in range(args.rounds):
        for name, clients, extra in CASES:
            plain = Load(clients, args.requests, predict=args.predict, seed=number)
            without = await drive(port, plain)
            with_it = await drive(port, replace(plain, extra=extra | _ends(extra)))
            rates, gains = results[clients, name]
            rates.append(with_it.rate)
            gains.append(with_it.rate / without.rate)
    return results


def _ends(extra: dict[str, Any]) -> dict[str, bool]:
    """Only text without a constraint can go on for ever."""
    return {"ignore_eos": "n_probs" in extra}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the demo model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192, help="tokens of all eight slots")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a measurement")
    parser.add_argument("--predict", type=int, default=96, help="tokens of a request")
    parser.add_argument("--ours-args", default="", help="more flags for the server")
    parser.add_argument("--ours-cmd", help='another command in its place, with "{port}" in it')
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

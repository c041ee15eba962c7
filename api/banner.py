"""What a person sees at the start: a progress bar while the model loads, then what is served and where."""

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import version
from typing import TextIO

from ipc.config import Config, HttpSection
from ipc.messages import Welcome

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
LOOPBACK = ("127.", "localhost", "::1")
BAR = 40


def banner(config: Config, welcome: Welcome) -> str:
    """The lines that tell what was loaded, its context and slots, memory, addresses and a request to try."""
    model = welcome.model
    shared = "shared by" if config.engine.unified else "split over"
    rows = {
        "model": f"{config.model.name} — {model.desc}, {count(model.n_params)} parameters, {size(model.size)}",
        "context": f"{welcome.n_ctx} tokens {shared} {slots(welcome.n_slots)}, up to {welcome.n_ctx_slot} each",
        "memory": memory(welcome),
        "listening": "  ".join(addresses(config.http)),
        "try": example(config),
    }
    head = f"llamarada {version('llamarada')}" + (f", libllama {welcome.build}" if welcome.build else "")
    return "\n".join([head, *(f"  {name:<10} {text}" for name, text in rows.items() if text)]) + "\n"


def slots(n: int) -> str:
    """A number of slots."""
    return f"{n} slot" + ("s" if n != 1 else "")


def count(n: float) -> str:
    """A large number in millions or billions."""
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.0f} million"


def size(n_bytes: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


def memory(welcome: Welcome) -> str:
    """Resident memory of the engine process, when the system tells."""
    try:
        with open(f"/proc/{welcome.pid}/status", encoding="ascii", errors="replace") as status:
            resident = next(line for line in status if line.startswith("VmRSS:"))
    except (OSError, StopIteration):
        return ""
    return f"{size(int(resident.split()[1]) * 1024)} in the engine process"


def addresses(http: HttpSection) -> list[str]:
    """The URLs that the server listens on."""
    return [f"unix://{host}" if host.endswith(".sock") else _url(http, host) for host in http.host]


def _url(http: HttpSection, host: str) -> str:
    scheme = "https" if http.ssl_cert_file is not None else "http"
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{bracketed}:{http.port}{http.api_prefix}"


def example(config: Config) -> str:
    """A curl command that works from this machine. It names no key: keys do not belong on a screen."""
    http = config.http
    host = http.host[0]
    words = ["curl"]
    if host.endswith(".sock"):
        words += ["--unix-socket", host]
        url = f"http://localhost{http.api_prefix}"
    else:
        url = _url(http, EVERYWHERE.get(host, host))
    words += [f"{url}/v1/completions"]
    command = " ".join(map(shlex.quote, words))
    if http.api_key or http.api_key_file:
        command += ' -H "Authorization: Bearer $API_KEY"'
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 32})
    return f"{command} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def security_warnings(config: Config) -> list[str]:
    """What makes this server dangerous where others can reach it; `spec/security.md` §2 and §6."""
    http, open_door = config.http, not (config.http.api_key or config.http.api_key_file)
    warnings = []
    if open_door and http.cors_origins == "*":
        warnings.append("any web page may use this server: CORS origins are * and no API key is set (--api-key)")
    reachable = [host for host in http.host if not host.endswith(".sock") and not host.startswith(LOOPBACK)]
    if open_door and reachable:
        warnings.append(
            f"anybody who reaches {', '.join(reachable)} may use this server: no API key is set (--api-key)"
        )
    if http.cors_credentials and http.cors_origins == "*":
        warnings.append("CORS credentials are allowed for every origin (--cors-origins)")
    dangerous = {
        "POST /props": http.props,
        "slot files": config.engine.slot_save_path is not None,
        "local media files": http.media_path is not None,
    }
    enabled = [name for name, on in dangerous.items() if on]
    if enabled:
        warnings.append(f"{', '.join(enabled)} enabled - do not expose to untrusted environments")
    return [f"security: {warning}" for warning in warnings]


class LoadBar:
    """A line on a terminal that grows while the model loads; silent on anything else."""

    def __init__(self, label: str, stream: TextIO = sys.stderr) -> None:
        self.label, self.stream = label, stream
        self.visible = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = ""

    def show(self, progress: float) -> None:
        """Draw `progress`, 0 to 1; cheap when nothing would change."""
        text = bar(self.label, progress, shutil.get_terminal_size().columns)
        if self.visible and text != self._drawn:
            self._drawn = text
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._drawn = ""


def bar(label: str, progress: float, columns: int) -> str:
    """The line for `progress`, cut to `columns`."""
    progress = min(max(progress, 0.0), 1.0)
    filled = round(progress * BAR)
    return f"loading {label} {'█' * filled}{'░' * (BAR - filled)} {progress:4.0%}"[: max(columns - 1, 0)]

"""Options of [ipc] and [log], and the flags that only inform."""

from ipc.options.option import ACTION, LATER, Option
from ipc.options.text import SWITCH

IPC = (
    Option(
        "ipc.run_dir",
        ("--run-dir",),
        "LLAMARADA_RUN_DIR",
        "folder of sockets and the lock (default: below $XDG_RUNTIME_DIR, else /tmp)",
        value="DIR",
    ),
    Option(
        "ipc.bind",
        ("--ipc-bind",),
        "LLAMARADA_IPC_BIND",
        "tcp:// address on which the engine serves clients of other hosts too",
        value="ADDRESS",
    ),
    Option(
        "ipc.curve_key_file",
        ("--ipc-curve-key-file",),
        "LLAMARADA_IPC_CURVE_KEY_FILE",
        "CURVE certificate with the engine's secret key",
        value="FILE",
    ),
    Option(
        "ipc.curve_clients_dir",
        ("--ipc-curve-clients-dir",),
        "LLAMARADA_IPC_CURVE_CLIENTS_DIR",
        "folder of the certificates of clients that may connect",
        value="DIR",
    ),
)

LOG = (
    Option(
        "log.verbosity",
        ("-lv", "--verbosity", "--log-verbosity"),
        "LLAMA_ARG_LOG_VERBOSITY",
        "0 output, 1 errors, 2 warnings, 3 information, 4 trace, 5 debug",
        value="N",
        low=0,
    ),
    Option(
        "log.verbosity", ("-v", "--verbose", "--log-verbose"), "", "log everything; answers carry `__verbose`", const=10
    ),
    Option("log.file", ("--log-file",), "LLAMA_ARG_LOG_FILE", "write the log to this file too", value="FILE"),
    Option(
        "log.jsonl",
        ("--log-jsonl",),
        "LLAMA_ARG_LOG_JSONL",
        "log one JSON object per line",
        no_flags=("--no-log-jsonl",),
    ),
    Option(
        "log.colors",
        ("--log-colors",),
        "LLAMA_ARG_LOG_COLORS",
        "colours: on, off or auto (on a terminal without NO_COLOR)",
        value="MODE",
        special=SWITCH,
        choices=("on", "off", "auto"),
    ),
    Option(
        "log.prefix",
        ("--log-prefix",),
        "LLAMA_ARG_LOG_PREFIX",
        "begin lines with level and process",
        no_flags=("--no-log-prefix",),
    ),
    Option(
        "log.timestamps",
        ("--log-timestamps",),
        "LLAMA_ARG_LOG_TIMESTAMPS",
        "begin lines with the time",
        no_flags=("--no-log-timestamps",),
    ),
    Option("log.disable", ("--log-disable",), "", "log nothing"),
)

INFORMATION = (
    Option(
        "", ("-h", "--help", "--usage"), help="print this help and exit", mark=ACTION, section="information", n_values=0
    ),
    Option("", ("--version",), help="print versions and exit", mark=ACTION, section="information", n_values=0),
    Option(
        "",
        ("--config",),
        "LLAMARADA_CONFIG_FILE",
        "TOML file with settings; flags and variables win over it",
        value="FILE",
        mark=ACTION,
        section="information",
    ),
    Option("", ("-cl", "--cache-list"), mark=LATER, section="information", n_values=0),
    Option("", ("--completion-bash",), mark=LATER, section="information", n_values=0),
)

"""Options of [chat]: templates and reasoning; and the agent and router features that are refused by name."""

from ipc.options.option import LATER, REFUSED, Option
from ipc.options.text import SWITCH, json_object

CHAT = (
    Option(
        "chat.jinja",
        ("--jinja",),
        "LLAMA_ARG_JINJA",
        "render chats by the model's own template",
        no_flags=("--no-jinja",),
    ),
    Option(
        "chat.template",
        ("--chat-template",),
        "LLAMA_ARG_CHAT_TEMPLATE",
        "jinja template, or the name of a built-in one (default: the model's)",
        value="T",
    ),
    Option(
        "chat.template_file",
        ("--chat-template-file",),
        "LLAMA_ARG_CHAT_TEMPLATE_FILE",
        "file with that template",
        value="FILE",
    ),
    Option(
        "chat.template_kwargs",
        ("--chat-template-kwargs",),
        "LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        "variables for the template",
        value="JSON",
        parse=json_object,
    ),
    Option(
        "chat.reasoning_format",
        ("--reasoning-format",),
        "LLAMA_ARG_THINK",
        "where thoughts go: none, auto, deepseek, deepseek-legacy",
        value="FORMAT",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    ),
    Option(
        "chat.reasoning",
        ("-rea", "--reasoning"),
        "LLAMA_ARG_REASONING",
        "thinking: on, off or auto (by template)",
        value="MODE",
        special=SWITCH,
        choices=("on", "off", "auto"),
        off="auto",
    ),
    Option(
        "chat.reasoning_effort",
        ("--reasoning-effort",),
        "LLAMA_ARG_REASONING_EFFORT",
        "effort told to the template",
        value="LEVEL",
    ),
    Option(
        "chat.reasoning_budget",
        ("--reasoning-budget",),
        "LLAMA_ARG_THINK_BUDGET",
        "most tokens of thinking; 0: none, -1: no limit",
        value="N",
        special={"-1": None},
        low=0,
        off=None,
    ),
    Option(
        "chat.reasoning_budget_message",
        ("--reasoning-budget-message",),
        "LLAMA_ARG_THINK_BUDGET_MESSAGE",
        "text put before the end of thoughts that were cut",
        value="S",
        off="",
    ),
    Option(
        "chat.reasoning_preserve",
        ("--reasoning-preserve",),
        "LLAMA_ARG_REASONING_PRESERVE",
        "keep thoughts of earlier turns",
        no_flags=("--no-reasoning-preserve",),
    ),
    Option(
        "chat.skip_parsing",
        ("--skip-chat-parsing",),
        "LLAMA_ARG_SKIP_CHAT_PARSING",
        "send everything as content",
        no_flags=("--no-skip-chat-parsing",),
        off=False,
    ),
    Option(
        "chat.prefill_assistant",
        ("--prefill-assistant",),
        "LLAMA_ARG_PREFILL_ASSISTANT",
        "go on with a last message by the assistant instead of answering it",
        no_flags=("--no-prefill-assistant",),
    ),
    Option(
        "chat.parse_special_content",
        ("--parse-special-content",),
        "LLAMARADA_PARSE_SPECIAL_CONTENT",
        "let message texts contain control tokens",
        off=False,
    ),
)


def _refused(section: str, *flags: str, env: str = "", n_values: int = 1) -> Option:
    return Option("", flags, env, mark=LATER, section=section, n_values=n_values)


AGENT = (
    _refused("agent", "--tools", env="LLAMA_ARG_TOOLS"),
    _refused("agent", "--tools-runtime", env="LLAMA_ARG_TOOLS_RUNTIME"),
    _refused("agent", "--mcp-servers-config", env="LLAMA_ARG_MCP_SERVERS_CONFIG"),
    _refused("agent", "--mcp-servers-json", env="LLAMA_ARG_MCP_SERVERS_JSON"),
    _refused("agent", "--ui-mcp-proxy", "--webui-mcp-proxy", env="LLAMA_ARG_UI_MCP_PROXY", n_values=0),
    _refused("agent", "-ag", "--agent", env="LLAMA_ARG_AGENT", n_values=0),
    Option(
        "",
        ("--no-ui-mcp-proxy", "--no-webui-mcp-proxy", "-no-ag", "--no-agent"),
        n_values=0,
        section="agent",
        help="off already",
    ),
)

ROUTER = (
    _refused("router", "--models-dir", env="LLAMA_ARG_MODELS_DIR"),
    _refused("router", "--models-preset", env="LLAMA_ARG_MODELS_PRESET"),
    _refused("router", "--models-max", env="LLAMA_ARG_MODELS_MAX"),
    _refused("router", "--models-autoload", "--no-models-autoload", env="LLAMA_ARG_MODELS_AUTOLOAD", n_values=0),
)

SHORTCUTS = tuple(
    Option(
        "",
        (flag,),
        mark=REFUSED,
        section="shortcuts",
        n_values=0,
        note="give the model and its settings yourself: -m FILE",
    )
    for flag in (
        "--embd-gemma-default",
        "--fim-qwen-1.5b-default",
        "--fim-qwen-3b-default",
        "--fim-qwen-7b-default",
        "--fim-qwen-7b-spec",
        "--fim-qwen-14b-spec",
        "--fim-qwen-30b-default",
        "--gpt-oss-20b-default",
        "--gpt-oss-120b-default",
        "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    )
)

OPTIONS = CHAT + AGENT + ROUTER + SHORTCUTS

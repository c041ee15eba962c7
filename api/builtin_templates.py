# ruff: noqa: RUF001 (the full-width characters belong to the formats)
"""The chat templates that have a name, and how to recognise one of them in a model's own template."""

from functools import cache

from api.builtin_formats import FORMATS, SOURCES, Turns

# First match wins. A needle with a leading "!" must be absent.
SIGNS: tuple[tuple[str, ...], ...] = (
    ("phi4", "<|im_start|>", "<|im_sep|>"),
    ("smolvlm", "<|im_start|>", "<end_of_utterance>"),
    ("chatml", "<|im_start|>"),
    ("mistral-v7", "[INST]", "[SYSTEM_PROMPT]"),
    ("mistral-v1", "' [INST] ' + system_message"),
    ("mistral-v1", " [INST]", "[AVAILABLE_TOOLS]"),
    ("mistral-v3-tekken", '"[INST]"', "[AVAILABLE_TOOLS]"),
    ("mistral-v3", "[INST]", "[AVAILABLE_TOOLS]"),
    ("llama2-sys-strip", "[INST]", "content.strip()"),
    ("llama2-sys-bos", "[INST]", "bos_token + '[INST]"),
    ("llama2-sys", "[INST]", "<<SYS>>"),
    ("llama2", "[INST]"),
    ("phi3", "<|assistant|>", "<|end|>"),
    ("chatglm4", "[gMASK]<sop>"),
    ("exaone-moe", "<|assistant|>", "<|user|>", "<|tool_declare|>"),
    ("falcon3", "<|assistant|>", "<|user|>", "</s>"),
    ("glmedge", "<|assistant|>", "<|user|>"),
    ("glmedge", "<|{{ item['role'] }}|>", "<|begin_of_image|>"),
    ("zephyr", "<|user|>", "<|endoftext|>"),
    ("monarch", "bos_token + message['role']"),
    ("gemma", "<start_of_turn>"),
    ("orion", "'\\n\\nAssistant: ' + eos_token"),
    ("openchat", "GPT4 Correct "),
    ("vicuna-orca", "USER: ", "ASSISTANT: ", "SYSTEM: "),
    ("vicuna", "USER: ", "ASSISTANT: "),
    ("deepseek", "### Instruction:", "<|EOT|>"),
    ("command-r", "<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"),
    ("llama3", "<|start_header_id|>", "<|end_header_id|>"),
    ("chatglm3", "[gMASK]sop"),
    ("minicpm", "<用户>"),
    ("deepseek2", "'Assistant: ' + message['content'] + eos_token"),
    ("deepseek3", "<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"),
    ("exaone4", "[|system|]", "[|assistant|]", "[|endofturn|]", "[|tool|]"),
    ("exaone3", "[|system|]", "[|assistant|]", "[|endofturn|]"),
    ("rwkv-world", "rwkv-world"),
    ("rwkv-world", "'User: ' + message['content']|trim + '\\n\\n'"),
    ("granite-4.0", "<|start_of_role|>", "<tool", "g4_default_system_message"),
    ("granite-4.1", "<|start_of_role|>", "<tool_call>"),
    ("granite-4.1", "<|start_of_role|>", "<tools>"),
    ("granite", "<|start_of_role|>"),
    ("gigachat", "message['role'] + additional_special_tokens[0] + message['content'] + additional_special_tokens[1]"),
    ("megrez", "<|role_start|>"),
    ("yandex", " Ассистент:"),
    ("bailing", "<role>ASSISTANT</role>", "'HUMAN'"),
    ("bailing-think", "<role>ASSISTANT</role>", '"HUMAN"', "<think>"),
    ("bailing2", "<role>ASSISTANT</role>", "<role>HUMAN</role>", "<|role_end|>"),
    ("llama4", "<|header_start|>", "<|header_end|>"),
    ("dots1", "<|endofuserprompt|>"),
    ("hunyuan-moe", "<|extra_0|>", "<|extra_4|>"),
    ("gpt-oss", "<|start|>", "<|channel|>"),
    ("hunyuan-vl", "<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>"),
    ("hunyuan-dense", "<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>"),
    ("kimi-k2", "<|im_assistant|>assistant<|im_middle|>"),
    ("seed_oss", "<seed:bos>"),
    ("grok-2", "'Assistant: '  + message['content'] + '<|separator|>"),
    ("pangu-embedded", "[unused9]系统：[unused10]"),
    ("solar-open", "<|begin|>", "<|end|>", "<|content|>"),
)

NAMES = tuple(sorted((*FORMATS, *SOURCES)))


def builtin(name: str) -> str | None:
    """The jinja source of a built-in template; None for an unknown name."""
    if name in FORMATS:
        return jinja_source(name)
    return SOURCES.get(name)


def detect(source: str) -> str | None:
    """The built-in template that a model's own template amounts to; None if it is none of them."""
    for name, *needles in SIGNS:
        if all(needle in source for needle in needles):
            return name
    return None


@cache
def jinja_source(name: str) -> str:
    """`FORMATS[name]` as a template."""
    turns = FORMATS[name]
    branches = [(role, text) for role, text in turns.roles().items() if text is not None]
    cases = "".join(
        f"{{% {'elif' if index else 'if'} message.role == {role!r} %}}{expressions(text)}"
        for index, (role, text) in enumerate(branches)
    )
    if turns.any is not None:
        cases += f"{{% else %}}{expressions(turns.any)}" if branches else expressions(turns.any)
    body = cases + ("{% endif %}" if branches else "")
    tail = f"{{% if add_generation_prompt %}}{expressions(turns.generation)}{{% endif %}}" if turns.generation else ""
    return f"{expressions(turns.head)}{{% for message in messages %}}{body}{{% endfor %}}{tail}"


FIELDS = {
    "text": "message.content",
    "trim": "message.content | trim",
    "role": "message.role",
    "ROLE": "message.role | upper",
    "Role": "message.role | capitalize",
}


def expressions(text: str) -> str:
    """A turn's format, with `{field}`s, as jinja expressions."""
    parts: list[str] = []
    for piece in text.split("{"):
        name, brace, rest = piece.partition("}")
        if brace and name in FIELDS:
            parts.append("{{ " + FIELDS[name] + " }}")
            piece = rest
        if piece:
            parts.append("{{ " + repr(piece) + " }}")
    return "".join(parts)


__all__ = ["NAMES", "Turns", "builtin", "detect"]

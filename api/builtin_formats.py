# ruff: noqa: RUF001 (the full-width characters belong to the formats)
"""The prompt formats of the built-in chat templates.

Most are a text around each message, by role: `{text}` is the content, `{trim}` the content without surrounding white
space, `{role}`, `{ROLE}` and `{Role}` the role as given, in capitals, capitalised. A role without a format of its own
takes `any`; without that it is left out. The few with more structure are jinja sources.
"""

from msgspec import Struct


class Turns(Struct, frozen=True, kw_only=True):
    """A prompt as `head`, one text per message, and `generation`, which asks for the answer."""

    head: str = ""
    system: str | None = None
    user: str | None = None
    assistant: str | None = None
    tool: str | None = None
    function: str | None = None
    assistant_tool_call: str | None = None
    any: str | None = None
    generation: str = ""

    def roles(self) -> dict[str, str | None]:
        """The formats by role, without `any`."""
        names = ("system", "user", "assistant", "tool", "function", "assistant_tool_call")
        return {name: getattr(self, name) for name in names}


def exaone(tool: str | None = None) -> Turns:
    """EXAONE 3 and 4: the user's turn has no end mark."""
    end = "[|endofturn|]\n"
    return Turns(
        system="[|system|]{trim}" + end,
        user="[|user|]{trim}\n",
        assistant="[|assistant|]{trim}" + end,
        tool=tool,
        generation="[|assistant|]",
    )


def granite(call: str) -> Turns:
    """Granite 3 and 4; `call` is the role mark of an assistant's tool call."""
    mark = "<|start_of_role|>{}<|end_of_role|>"
    end = "{text}<|end_of_text|>\n"
    return Turns(
        any=mark.format("{role}") + end,
        assistant_tool_call=mark.format(call) + "<|tool_call|>" + end,
        generation=mark.format("assistant"),
    )


def bailing(thought: str = "") -> Turns:
    """Ling and Ring."""
    return Turns(
        user="<role>HUMAN</role>{text}", any="<role>{ROLE}</role>{text}", generation="<role>ASSISTANT</role>" + thought
    )


def mistral_v7(space: str) -> Turns:
    """Mistral with a system prompt of its own, before and with the Tekken tokenizer."""
    return Turns(
        system=f"[SYSTEM_PROMPT]{space}{{text}}[/SYSTEM_PROMPT]",
        user=f"[INST]{space}{{text}}[/INST]",
        any=f"{space}{{text}}</s>",
    )


def vicuna(system: str) -> Turns:
    """Vicuna and its Orca variant."""
    return Turns(system=system, user="USER: {text}\n", assistant="ASSISTANT: {text}</s>\n", generation="ASSISTANT:")


FORMATS: dict[str, Turns] = {
    "bailing": bailing(),
    "bailing-think": bailing("<think>"),
    "chatglm3": Turns(head="[gMASK]sop", any="<|{role}|>\n {text}", generation="<|assistant|>"),
    "chatglm4": Turns(head="[gMASK]<sop>", any="<|{role}|>\n{text}", generation="<|assistant|>\n"),
    "chatml": Turns(any="<|im_start|>{role}\n{text}<|im_end|>\n", generation="<|im_start|>assistant\n"),
    "command-r": Turns(
        system="<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{trim}<|END_OF_TURN_TOKEN|>",
        user="<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{trim}<|END_OF_TURN_TOKEN|>",
        assistant="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{trim}<|END_OF_TURN_TOKEN|>",
        generation="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "deepseek": Turns(
        system="{text}",
        user="### Instruction:\n{text}\n",
        assistant="### Response:\n{text}\n<|EOT|>\n",
        generation="### Response:\n",
    ),
    "deepseek-ocr": Turns(any="{text}"),
    "deepseek2": Turns(
        system="{text}\n\n",
        user="User: {text}\n\n",
        assistant="Assistant: {text}<｜end▁of▁sentence｜>",
        generation="Assistant:",
    ),
    "deepseek3": Turns(
        system="{text}\n\n",
        user="<｜User｜>{text}",
        assistant="<｜Assistant｜>{text}<｜end▁of▁sentence｜>",
        generation="<｜Assistant｜>",
    ),
    "dots1": Turns(
        system="<|system|>{text}<|endofsystem|>",
        user="<|userprompt|>{text}<|endofuserprompt|>",
        any="<|response|>{text}<|endofresponse|>",
        generation="<|response|>",
    ),
    "exaone-moe": Turns(
        system="<|system|>\n{trim}<|endofturn|>\n",
        user="<|user|>\n{trim}<|endofturn|>\n",
        assistant="<|assistant|>\n{trim}<|endofturn|>\n",
        tool="<|tool|>\n{trim}<|endofturn|>\n",
        generation="<|assistant|>\n",
    ),
    "exaone3": exaone(),
    "exaone4": exaone("[|tool|]{trim}[|endofturn|]\n"),
    "falcon3": Turns(any="<|{role}|>\n{text}\n", generation="<|assistant|>\n"),
    "glmedge": Turns(any="<|{role}|>\n{text}", generation="<|assistant|>"),
    "gpt-oss": Turns(
        assistant="<|start|>assistant<|message|>{text}<|return|>",
        any="<|start|>{role}<|message|>{text}<|end|>",
        generation="<|start|>assistant",
    ),
    "granite": granite("assistant_tool_call"),
    "granite-4.0": granite("assistant"),
    "granite-4.1": granite("assistant"),
    "grok-2": Turns(
        system="System: {trim}<|separator|>\n\n",
        user="Human: {trim}<|separator|>\n\n",
        assistant="Assistant: {text}<|separator|>\n\n",
        generation="Assistant:",
    ),
    "hunyuan-moe": Turns(
        system="<|startoftext|>{text}<|extra_4|>", assistant="{text}<|eos|>", any="<|startoftext|>{text}<|extra_0|>"
    ),
    "kimi-k2": Turns(
        system="<|im_system|>system<|im_middle|>{text}<|im_end|>",
        user="<|im_user|>user<|im_middle|>{text}<|im_end|>",
        assistant="<|im_assistant|>assistant<|im_middle|>{text}<|im_end|>",
        tool="<|im_system|>tool<|im_middle|>{text}<|im_end|>",
        any="{text}<|im_end|>",
        generation="<|im_assistant|>assistant<|im_middle|>",
    ),
    "llama3": Turns(
        any="<|start_header_id|>{role}<|end_header_id|>\n\n{trim}<|eot_id|>",
        generation="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": Turns(
        any="<|header_start|>{role}<|header_end|>\n\n{trim}<|eot|>",
        generation="<|header_start|>assistant<|header_end|>\n\n",
    ),
    "megrez": Turns(
        any="<|role_start|>{role}<|role_end|>{text}<|turn_end|>", generation="<|role_start|>assistant<|role_end|>"
    ),
    "minicpm": Turns(user="<用户>{trim}<AI>", any="{trim}"),
    "mistral-v7": mistral_v7(" "),
    "mistral-v7-tekken": mistral_v7(""),
    "phi3": Turns(any="<|{role}|>\n{text}<|end|>\n", generation="<|assistant|>\n"),
    "phi4": Turns(any="<|im_start|>{role}<|im_sep|>{text}<|im_end|>", generation="<|im_start|>assistant<|im_sep|>"),
    "seed_oss": Turns(
        assistant="<seed:bos>assistant\n{trim}<seed:eos>",
        any="<seed:bos>{role}\n{text}<seed:eos>",
        generation="<seed:bos>assistant\n",
    ),
    "smolvlm": Turns(
        head="<|im_start|>",
        system="{text}\n\n",
        user="User: {text}<end_of_utterance>\n",
        any="Assistant: {text}<end_of_utterance>\n",
        generation="Assistant:",
    ),
    "solar-open": Turns(any="<|begin|>{role}<|content|>{text}<|end|>", generation="<|begin|>assistant"),
    "vicuna": vicuna("{text}\n\n"),
    "vicuna-orca": vicuna("SYSTEM: {text}\n"),
    "yandex": Turns(
        user=" Пользователь: {text}\n\n", assistant=" Ассистент: {text}\n\n", generation=" Ассистент:[SEP]"
    ),
    "zephyr": Turns(any="<|{role}|>\n{text}<|endoftext|>\n", generation="<|assistant|>\n"),
}


def llama2(system: str, text: str = "message.content", reopen: str = "[INST] ") -> str:
    """Llama 2: the system text stands inside the first user turn."""
    return (
        "{{ '[INST] ' }}{% for message in messages %}"
        "{% if not loop.first and loop.previtem.role not in ('system', 'user') %}{{ '" + reopen + "' }}{% endif %}"
        "{% if message.role == 'system' %}" + system.replace("TEXT", "{{ " + text + " }}") + "{% elif message.role == "
        "'user' %}{{ " + text + " }}{{ ' [/INST]' }}{% else %}{{ " + text + " }}{{ '</s>' }}{% endif %}{% endfor %}"
    )


def mistral(before: str, after: str, answer: str = "message.content") -> str:
    """Mistral before version 7: `before` and `after` are the blanks around the marks."""
    return (
        "{% for message in messages %}{% if loop.first or loop.previtem.role not in ('system', 'user') %}{{ '"
        + f"{before}[INST]{after}' }}}}{{% endif %}}"
        "{% if message.role == 'system' %}{{ message.content }}{{ '\\n\\n' }}"
        "{% elif message.role == 'user' %}{{ message.content }}{{ '" + before + "[/INST]' }}"
        "{% else %}{{ '" + after + "' }}{{ " + answer + " }}{{ '</s>' }}{% endif %}{% endfor %}"
    )


MARKED_SYSTEM = "{{ '<<SYS>>\\n' }}TEXT{{ '\\n<</SYS>>\\n\\n' }}"

SOURCES: dict[str, str] = {
    "llama2": llama2("TEXT{{ '\\n' }}"),
    "llama2-sys": llama2(MARKED_SYSTEM),
    "llama2-sys-bos": llama2(MARKED_SYSTEM, reopen="<s>[INST] "),
    "llama2-sys-strip": llama2(MARKED_SYSTEM, text="message.content | trim"),
    "mistral-v1": mistral(" ", " "),
    "mistral-v3": mistral("", " ", answer="message.content | trim"),
    "mistral-v3-tekken": mistral("", ""),
    "gemma": """{% set ns = namespace(system='') %}{% for message in messages %}
{% if message.role == 'system' %}{% set ns.system = ns.system ~ (message.content | trim) %}{% else %}
{{ '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) ~ '\\n' }}
{%- if ns.system and message.role != 'assistant' %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}{% endif %}
{{- message.content | trim }}{{ '<end_of_turn>\\n' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "orion": """{% set ns = namespace(system='') %}{% for message in messages %}
{% if message.role == 'system' %}{% set ns.system = ns.system ~ message.content %}
{% elif message.role == 'user' %}{{ 'Human: ' }}
{%- if ns.system %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}{% endif %}
{{- message.content ~ '\\n\\nAssistant: </s>' }}
{%- else %}{{ message.content ~ '</s>' }}{% endif %}{% endfor %}""",
    "openchat": """{% for message in messages %}{% if message.role == 'system' %}
{{- message.content ~ '<|end_of_turn|>' }}{% else %}
{{- 'GPT4 Correct ' ~ (message.role | capitalize) ~ ': ' ~ message.content ~ '<|end_of_turn|>' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}""",
    "monarch": """{% for message in messages %}{{ ('' if loop.first else '<s>') ~ message.role ~ '\\n' }}
{{- message.content ~ '</s>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}""",
    "bailing2": """{% if not messages or messages[0].role != 'system' %}
{{ '<role>SYSTEM</role>detailed thinking off<|role_end|>' }}{% endif %}{% for message in messages %}
{{- '<role>' ~ ('HUMAN' if message.role == 'user' else message.role | upper) ~ '</role>' }}
{{- message.content ~ '<|role_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}""",
    "gigachat": """{{ '<s>' }}{% for message in messages %}{% if loop.first and message.role == 'system' %}
{{- message.content ~ '<|message_sep|>' }}{% elif message.role == 'user' %}
{{- 'user<|role_sep|>' ~ message.content ~ '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' }}
{%- elif message.role == 'assistant' %}{{ 'assistant<|role_sep|>' ~ message.content ~ '<|message_sep|>' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant<|role_sep|>' }}{% endif %}""",
    "hunyuan-dense": """{% for message in messages %}{% if loop.first and message.role == 'system' %}
{{- message.content ~ '<｜hy_place▁holder▁no▁3｜>' }}{% elif message.role == 'assistant' %}
{{- '<｜hy_Assistant｜>' ~ message.content ~ '<｜hy_place▁holder▁no▁2｜>' }}{% elif message.role == 'user' %}
{{- '<｜hy_User｜>' ~ message.content ~ '<｜hy_Assistant｜>' }}{% endif %}{% endfor %}""",
    "hunyuan-vl": """{{ '<｜hy_begin▁of▁sentence｜>' }}{% for message in messages %}
{% if loop.first and message.role == 'system' %}{{ message.content ~ '<｜hy_place▁holder▁no▁3｜>' }}
{%- elif message.role == 'user' %}{{ message.content ~ '<｜hy_User｜>' }}
{%- elif message.role == 'assistant' %}{{ message.content ~ '<｜hy_Assistant｜>' }}{% endif %}{% endfor %}""",
    "pangu-embedded": """{% set names = {'system': '系统：', 'user': '用户：', 'assistant': '助手：',
                  'tool': '工具：', 'function': '方法：'} %}
{% if messages and messages[0].role != 'system' %}{{ '[unused9]系统：[unused10]' }}{% endif %}
{% for message in messages %}{% if message.role in names %}
{{- '[unused9]' ~ names[message.role] ~ message.content ~ '[unused10]' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '[unused9]助手：' }}{% endif %}""",
    "rwkv-world": """{% for message in messages %}{% if message.role == 'system' %}
{{- 'System: ' ~ (message.content | trim) ~ '\\n\\n' }}{% elif message.role == 'user' %}
{{- 'User: ' ~ (message.content | trim) ~ '\\n\\n' }}{% if loop.last %}{{ 'Assistant:' }}{% endif %}
{%- elif message.role == 'assistant' %}{{ 'Assistant: ' ~ (message.content | trim) ~ '\\n\\n' }}
{%- endif %}{% endfor %}""",
}

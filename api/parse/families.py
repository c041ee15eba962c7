"""The formats of model families that are known by their templates' text."""

from collections.abc import Callable
from dataclasses import dataclass

from api.parse.calls import JsonCalls
from api.parse.channels import Harmony, Muse
from api.parse.format import Format
from api.parse.functionary import Functionary
from api.parse.gemma import GemmaCalls
from api.parse.layout import Pair, Thinking
from api.parse.minimax import MinimaxCalls
from api.parse.params import JsonArgs, TaggedArgs
from api.parse.pycalls import PythonCalls
from api.parse.tags import TagCalls

THINK = Thinking("<think>", "</think>")
DSML = "\uff5cDSML\uff5c"

MINISTRAL = Format(
    "Ministral 3",
    thinking=Thinking("[THINK]", "[/THINK]"),
    calls=TagCalls(JsonArgs(), call=Pair("[TOOL_CALLS]"), name=Pair("", "[ARGS]")),
    fenced=True,
)
HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>")
HARMONY_THINKING = Thinking("<|channel|>analysis<|message|>", "<|end|>")
HARMONY = Harmony("GPT-OSS", thinking=HARMONY_THINKING, ends=HARMONY_ENDS, parallel=False)
LLM_JP = Harmony(
    "LLM-jp Harmony",
    thinking=Thinking("<|channel|> analysis<|message|>", "<|end|>"),
    ends=HARMONY_ENDS,
    blank=True,
)
MUSE = Muse(
    "Muse Glimmer",
    thinking=Thinking(" to=self<|message|>", "<|eom|>"),
    ends=("<|eom|>", "<|eot|>"),
    calls=TagCalls(
        TaggedArgs(Pair('<atem:parameter name="', '"'), Pair("", "</atem:parameter>"), attributes=">"),
        section=Pair("<atem:function_calls>", "</atem:function_calls>"),
        call=Pair('<atem:invoke name="', "</atem:invoke>"),
        name=Pair("", '"'),
        attributes=">",
    ),
    fenced=True,
)
FUNCTIONARY = Functionary("Functionary 3.2")
KIMI_K2 = Format(
    "Kimi K2",
    thinking=Thinking("<think>", "</think>", ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")),
    calls=TagCalls(
        JsonArgs(),
        section=Pair("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=Pair("<|tool_call_begin|>", "<|tool_call_end|>"),
        name=Pair("", "<|tool_call_argument_begin|>"),
        id_in_name=True,
        bare_call=True,
    ),
)
KIMI_K3 = Format(
    "Kimi K3",
    thinking=Thinking("<|open|>think<|sep|>", "<|close|>think<|sep|>", ("<|open|>response<|sep|>",)),
    content=Pair("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    calls=TagCalls(
        TaggedArgs(Pair('<|open|>argument key="', '"'), Pair("", "<|close|>argument<|sep|>"), attributes="<|sep|>"),
        section=Pair("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        call=Pair('<|open|>call tool="', "<|close|>call<|sep|>"),
        name=Pair("", '"'),
        attributes="<|sep|>",
    ),
    noise=("<|close|>message<|sep|>", "<|end_of_msg|>"),
)
LING = Format(
    "Ling 3",
    thinking=Thinking("<think>", "</think>", ("<tool_call>",)),
    calls=TagCalls(
        TaggedArgs(Pair("<arg_key>", "</arg_key>"), Pair("<arg_value>", "</arg_value>"), unions_as_json=True),
        call=Pair("<tool_call>", "</tool_call>"),
    ),
    stops=("<|role_end|>",),
    noise=("<|role_end|>",),
)
COHERE_MOE = Format(
    "Cohere2 MoE",
    thinking=Thinking("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>", "<|START_ACTION|>")),
    content=Pair("<|START_TEXT|>", "<|END_TEXT|>"),
    calls=JsonCalls(
        section=Pair("<|START_ACTION|>", "<|END_ACTION|>"),
        array=True,
        name="tool_name",
        args="parameters",
        id="tool_call_id",
        order=("tool_call_id", "tool_name", "parameters"),
    ),
    noise=("<|END_OF_TURN_TOKEN|>",),
)
GIGACHAT = Format(
    "GigaChat 3",
    calls=JsonCalls(call=Pair("<|message_sep|>\n\nfunction call<|role_sep|>\n"), parallel=False),
    noise=("<|message_sep|>",),
)
MINIMAX_M3 = Format("MiniMax M3", thinking=Thinking("<mm:think>", "</mm:think>"), calls=MinimaxCalls(), fenced=True)


def deepseek(block: str) -> Format:
    """DeepSeek V3.2 (`block` is "function_calls") and V4 ("tool_calls")."""
    section = Pair(f"<{DSML}{block}>", f"</{DSML}{block}>")
    return Format(
        "DeepSeek V3.2" if block == "function_calls" else "DeepSeek V4",
        thinking=Thinking("<think>", "</think>", (section.start,)),
        calls=TagCalls(
            TaggedArgs(
                Pair(f'<{DSML}parameter name="', '"'),
                Pair("", f"</{DSML}parameter>"),
                attributes=">",
                string_flag='string="true"',
            ),
            section=section,
            call=Pair(f'<{DSML}invoke name="', f"</{DSML}invoke>"),
            name=Pair("", '"'),
            attributes=">",
        ),
        fenced=True,
    )


GEMMA = Format(
    "Gemma 4",
    thinking=Thinking("<|channel>thought", "<channel|>"),
    calls=GemmaCalls(Pair("<|tool_call>", "<tool_call|>")),
    noise=("<channel|>", "<|channel>", "<|tool_response>"),
    thinks_again=True,
    fenced=True,
)
MINICPM = Format(
    "MiniCPM5",
    thinking=THINK,
    calls=TagCalls(
        TaggedArgs(Pair('<param name="', '"'), Pair("", "</param>"), attributes=">", cdata=True),
        call=Pair('<function name="', "</function>"),
        name=Pair("", '"'),
        attributes=">",
    ),
)


def qwen_coder(thinks: bool) -> Format:
    """Qwen3-Coder and, thinking, Qwen3.5 and its relatives."""
    return Format(
        "Qwen3-Coder",
        thinking=Thinking("<think>", "</think>", ("<tool_call>",)) if thinks else None,
        calls=TagCalls(
            TaggedArgs(Pair("<parameter=", ">"), Pair("", "</parameter>"), newline=True, unions_as_json=True),
            call=Pair("<tool_call>", "</tool_call>"),
            name=Pair("<function=", ">"),
            close="</function>",
            bare_name=not thinks,
        ),
    )


def lfm2(source: str) -> Format:
    """LFM2 and LFM2.5, some of which think."""
    calls = PythonCalls(Pair("<|tool_call_start|>", "<|tool_call_end|>"))
    return Format("LFM2", thinking=THINK if THINK.start in source else None, calls=calls)


def dsml(source: str) -> Format:
    """DeepSeek V3.2 or V4, by the name of the block of calls."""
    return deepseek("function_calls" if "function_calls" in source else "tool_calls")


@dataclass(frozen=True, slots=True)
class Family:
    """A format and the texts that its templates contain, and do not contain."""

    format: Format | Callable[[str], Format]
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    def matches(self, source: str) -> bool:
        """Whether `source` is a template of this family."""
        return all(text in source for text in self.has) and not any(text in source for text in self.lacks)


FAMILIES = (  # the first match wins
    Family(MINISTRAL, ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"), ("[CALL_ID]",)),
    Family(LLM_JP, ("chat_format=llm-jp-harmony-v1",)),
    Family(HARMONY, ("<|channel|>",)),
    Family(MUSE, ("<atem:function_calls>", "<|eom|>")),
    Family(FUNCTIONARY, (">>>all", ">>>${recipient}")),
    Family(KIMI_K2, ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")),
    Family(KIMI_K3, ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    Family(LING, ("<role>ASSISTANT</role>", "<arg_key>")),
    Family(COHERE_MOE, ("<|START_TEXT|>", "<|START_ACTION|>")),
    Family(lfm2, ("<|tool_list_start|>", "<|tool_list_end|>")),
    Family(lfm2, ("List of tools: [",), ("<|tool_list_start|>",)),
    Family(GIGACHAT, ("<|role_sep|>", "<|message_sep|>"), ("<|function_call|>",)),
    Family(MINIMAX_M3, ("]<]minimax[>[", "<tool_call>", "<invoke name=")),
    Family(dsml, ("dsml_token", "DSML", "function_calls")),
    Family(dsml, ("dsml_token", "DSML", "tool_calls")),
    Family(GEMMA, ("'<|tool_call>call:'",)),
    Family(MINICPM, ("Tool usage guidelines:", '<function name="', '<param name="')),
    Family(
        lambda source: qwen_coder(THINK.start in source),
        ("<tool_call>", "<function=", "<parameter="),
        ("'<tool_call><function=' ~ tool_call.name ~ '>'",),
    ),
)


def known(source: str) -> Format | None:
    """The format of the family whose template `source` is; None for a template of no known family."""
    for family in FAMILIES:
        if family.matches(source):
            return family.format if isinstance(family.format, Format) else family.format(source)
    return None

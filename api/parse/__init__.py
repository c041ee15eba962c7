"""From a model's text to reasoning, content and tool calls, and from tools to the grammar that constrains the text.

`formats.find_format` tells how a template's model answers: a family known by its template's text (`families`), or
what trial renderings show (`infer`, `infer_calls`, `trial`). A `format.Format` reads an answer by generators over a
`scan.Scanner`; `stream.Parser` drives them. How calls are written is a syntax of its own: JSON (`calls`), marks
(`tags`, `params`), Python (`pycalls`), Gemma's notation (`gemma`), nested tags (`minimax`); `channels` and
`functionary` are formats of several messages. Every format and syntax also states its grammar (`lark`,
`params_grammar`, `rawtext`, `shapes`); `checks` finds what in a schema cannot be enforced.
"""

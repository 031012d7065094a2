#!/usr/bin/env python3
"""Turns the headers' ordinary comments into the ones that doxygen reads. The headers stay free of
markup: a comment on lines of its own describes what follows; one behind a declaration describes that.
The caller's place, which macros supply, is left out."""
import re
import sys

text = open(sys.argv[1]).read()
text = re.sub(r"^#define (td_\w+)\(\.\.\.\) \1\(__VA_ARGS__, TD_HERE\)\n", "", text, flags=re.M)
text = text.replace(", td_site at)", ")")
text = re.sub(r"^ */\* ---- .*? ---- \*/\n", "", text, flags=re.M)
text = re.sub(r"^( *)/\* ---- (.*?) ----$", r"\1/* \2.", text, flags=re.M)
text = re.sub(r"^(\s*)/\*(?!\*)", r"\1/**", text, flags=re.M)
text = re.sub(r"(\S[^\n]*[;,{}]\s*)/\*(?![*])", r"\1/**<", text)
text = re.sub(r"^/\*\*", "/** @file\n *", text, count=1)
sys.stdout.write(text)

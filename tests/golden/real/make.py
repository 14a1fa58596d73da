#!/usr/bin/env python3
"""Writes <model>.json for real models that scripts/fetch-models brings: what transformers makes of a few texts.

usage: make.py [--models FOLDER] [NAME...]       NAME defaults to smollm2-135m and qwen2.5-coder-0.5b
needs: torch transformers (../README.md names the versions used)
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

HERE = Path(__file__).resolve().parent
NEW = 24
CHAT = [{"role": "user", "content": "Why do leaves change their colour in autumn? Explain it to a child."}]
TEXTS = {
    "probe": "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is",
    "code": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n",
    "digits": "In 1789 the price was 12.50; by 1815 it had reached 3,407.25 (an increase of more than 27,000 %).  Naïve "
              "rěčí, 東京 and 🙂\n\n\tshow",
    "chat": None,
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()


def logprobs(model, ids):
    """ln p of ids[1..] given those before, in nats; the log-softmax is in f32 whatever the model's type."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
    taken = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
    return [round(x, 6) for x in taken[:, 0].tolist()]


def greedy(model, ids):
    """The best token NEW times over, and how far its logit was above the second-best."""
    result = model.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True,
                            output_logits=True, attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    assert len(result.logits) == NEW, f"a stop token within {NEW}: take another text"
    best = [logits[0].float().topk(2).values for logits in result.logits]
    return {"ids": result.sequences[0, len(ids):].tolist(),
            "margins": [round((first - second).item(), 4) for first, second in best]}


def make(folder, name):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def load(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

    model = load(torch.float32)
    rows = []
    for key, text in TEXTS.items():
        if text is None:
            text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows.append({"name": key, "text": text, "ids": ids, "logprobs_f32": logprobs(model, ids),
                     "greedy_f32": greedy(model, ids)})
    del model
    model = load(torch.bfloat16)
    for row in rows:
        row["logprobs_bf16"] = logprobs(model, row["ids"])
        gap = [a - b for a, b in zip(row["logprobs_f32"], row["logprobs_bf16"])]
        print(f"{name} {row['name']}: {len(row['ids'])} tokens, mean NLL f32 "
              f"{-sum(row['logprobs_f32']) / len(gap):.6f}, bf16 {-sum(row['logprobs_bf16']) / len(gap):.6f}, largest "
              f"bf16 difference {max(map(abs, gap)):.3f}, smallest margin {min(row['greedy_f32']['margins']):.4f}")
    doc = {"model": name, "weights_sha256": sha256(folder / "model.safetensors"),
           "command": f"python tests/golden/real/make.py {name}",
           "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "chat": CHAT,
           "about": "logprobs: ln p of ids[1..] in nats. greedy_f32: 24 best tokens, and by how much the best logit beat "
                    "the second.", "rows": rows}
    text = json.dumps(doc, ensure_ascii=False, separators=(",", ":")).replace(',"', ',\n"')
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--models", type=Path, default=HERE.parents[2] / "models")
    args.add_argument("names", nargs="*", default=["smollm2-135m", "qwen2.5-coder-0.5b"])
    args = args.parse_args()
    for name in args.names:
        make(args.models / name, name)


if __name__ == "__main__":
    main()

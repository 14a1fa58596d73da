#!/usr/bin/env python3
"""Writes the tiny random models of this folder, and what PyTorch and transformers compute with them.

usage: make.py [OUT]          OUT defaults to the folder of this script
needs: torch transformers safetensors numpy (README.md names the versions used)

Everything in the reference files is float32 with eager attention on one thread. Before anything is written, a second
forward pass in float64 that shares no code with transformers (`plain_forward`) must agree with it, gradients included.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

COMMAND = "python tests/golden/make.py"
VOCAB = 131  # prime: no tile or SIMD width divides it
ROWS, LENGTH = 2, 24
PROMPT, NEW = 8, 16

# heads x head_dim differs from hidden in qwen3, llama and mistral. qwen2 leaves head_dim to the default
# (hidden / heads) as its published configs do, and has three query heads for each key head.
MODELS = {
    "qwen3": dict(hidden_size=40, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6,
                  rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2": dict(hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=3,
                  num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-6,
                  rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "llama": dict(hidden_size=40, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
                  rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "mistral": dict(hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=1, head_dim=24, tie_word_embeddings=False, rms_norm_eps=1e-5,
                    sliding_window=None, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
}

# Run on the llama weights. Rows are longer than the original context, so that scaling shows at every position.
YARN = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {
    "theta": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn-set": {"rope_type": "yarn", **YARN, "attention_factor": 1.25, "beta_fast": 8.0, "beta_slow": 0.5},
    "llama3": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}


def classes(arch):
    name = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}[arch]
    return getattr(transformers, name + "Config"), getattr(transformers, name + "ForCausalLM")


def build(arch, config, seed):
    """A random model whose every parameter matters: norms off one, biases off zero, logits far from flat."""
    torch.manual_seed(seed)
    model = classes(arch)[1](config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            if name.endswith(".bias"):
                parameter.copy_(0.4 * torch.randn_like(parameter))
    return model


def make_config(arch):
    return classes(arch)[0](
        **MODELS[arch], vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.15, attention_dropout=0.0,
        bos_token_id=VOCAB - 2, eos_token_id=VOCAB - 1, attn_implementation="eager")


def plain_forward(weights, config, ids):
    """Logits in float64 for default rope, written from the architecture's definition."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    theta = config.rope_parameters["rope_theta"]
    rows, length = ids.shape

    def norm(x, gain):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.rms_norm_eps) * gain

    angles = torch.outer(torch.arange(length, dtype=torch.float64),
                         theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    cos, sin = angles.cos(), angles.sin()

    def rotate(x):  # [rows, heads, length, dim]; element i is paired with i + dim / 2
        a, b = x[..., : dim // 2], x[..., dim // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        w = lambda name: weights.get(f"model.layers.{layer}.{name}")

        def project(x, name, count):
            y = x @ w(f"self_attn.{name}_proj.weight").T
            if (bias := w(f"self_attn.{name}_proj.bias")) is not None:
                y = y + bias
            y = y.view(rows, length, count, dim)
            if (gain := w(f"self_attn.{name}_norm.weight")) is not None:
                y = norm(y, gain)
            return y.transpose(1, 2)

        h = norm(x, w("input_layernorm.weight"))
        q = rotate(project(h, "q", heads))
        k = rotate(project(h, "k", kv_heads)).repeat_interleave(heads // kv_heads, 1)
        v = project(h, "v", kv_heads).repeat_interleave(heads // kv_heads, 1)
        p = (q @ k.transpose(-1, -2) / dim**0.5).masked_fill(future, float("-inf")).softmax(-1)
        x = x + (p @ v).transpose(1, 2).reshape(rows, length, heads * dim) @ w("self_attn.o_proj.weight").T
        h = norm(x, w("post_attention_layernorm.weight"))
        gate = h @ w("mlp.gate_proj.weight").T
        x = x + (gate * gate.sigmoid() * (h @ w("mlp.up_proj.weight").T)) @ w("mlp.down_proj.weight").T
    head = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return norm(x, weights["model.norm.weight"]) @ head.T


def divergences(student_logits, teacher_logits):
    """(KL(student || teacher), KL(teacher || student)): means in nats over every position that predicts a token."""
    s = torch.log_softmax(student_logits[:, :-1], -1)
    t = torch.log_softmax(teacher_logits[:, :-1], -1)
    return (s.exp() * (s - t)).sum(-1).mean(), (t.exp() * (t - s)).sum(-1).mean()


def greedy(model, ids):
    """The continuation, and the smallest distance between the best and the second-best logit on the way."""
    out, margin = ids.clone(), float("inf")
    with torch.no_grad():
        for _ in range(NEW):
            top = model(out).logits[0, -1].topk(2)
            margin = min(margin, (top.values[0] - top.values[1]).item())
            out = torch.cat([out, top.indices[:1].view(1, 1)], 1)
    return out[0, ids.shape[1]:], margin


def write_model(out, arch):
    config = make_config(arch)
    student, teacher = build(arch, config, 0), build(arch, config, 0)
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=g))
    student.save_pretrained(out / arch)

    ids = torch.randint(0, VOCAB - 2, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    continuation, margin = greedy(student, ids[:1, :PROMPT])
    assert margin > 1e-2 and VOCAB - 1 not in continuation, (arch, margin, continuation)

    student_logits = student(ids).logits
    teacher_logits = teacher(ids).logits.detach()
    reverse, forward = divergences(student_logits, teacher_logits)
    reverse.backward()
    reference = {
        "ids": ids.int(),
        "student_logits": student_logits.detach(),
        "teacher_logits": teacher_logits,
        "reverse_kl": reverse.detach().reshape(1),
        "forward_kl": forward.detach().reshape(1),
        "greedy_ids": continuation.int(),
    }
    for name, parameter in student.named_parameters():
        reference[f"grad.{name}"] = parameter.grad.clone()
    before = {name: p.detach().double().requires_grad_() for name, p in student.named_parameters()}

    torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
    for name, parameter in student.named_parameters():
        reference[f"after.{name}"] = parameter.detach().clone()
    save_file(reference, out / arch / "reference.safetensors", metadata={"format": "pt"})

    plain = plain_forward(before, config, ids)
    plain_reverse, plain_forward_kl = divergences(plain, teacher_logits.double())
    plain_reverse.backward()
    logits_error = (plain - student_logits).abs().max().item()
    grads_error = max(
        ((p.grad - reference[f"grad.{n}"]).norm() / p.grad.norm()).item() for n, p in before.items())
    kl_error = max(abs(plain_reverse.item() - reverse.item()), abs(plain_forward_kl.item() - forward.item()))
    assert logits_error < 5e-5 and grads_error < 5e-5 and kl_error < 1e-6, (arch, logits_error, grads_error, kl_error)
    size = sum(f.stat().st_size for f in (out / arch).iterdir())
    assert size < 900_000, (arch, size)
    print(f"{arch}: {sum(p.numel() for p in student.parameters())} parameters, {size} bytes, "
          f"logit deviation {student_logits.std().item():.2f}, reverse KL {reverse.item():.6f}, forward KL "
          f"{forward.item():.6f}, smallest greedy margin {margin:.3f}; float64 differs by {logits_error:.1e} (logits), "
          f"{grads_error:.1e} (gradient norms, worst tensor), {kl_error:.1e} (KL)")


def old_dialect(config):
    """The same settings as transformers 4 wrote them: rope_theta beside rope_scaling, torch_dtype for dtype."""
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    rope = dict(config["rope_parameters"])
    old["rope_theta"] = rope.pop("rope_theta")
    # Files older still say "type" for "rope_type"; linear scaling is mostly met in those.
    kind = rope.pop("rope_type")
    key = "type" if kind == "linear" else "rope_type"
    old["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    old["torch_dtype"] = "float32"
    old["transformers_version"] = "4.44.0"
    return old


def write_ropes(out):
    ids = torch.randint(0, VOCAB - 2, (1, 32), generator=torch.Generator().manual_seed(2))
    base = json.loads((out / "llama" / "config.json").read_text())
    reference = {"ids": ids.int()}
    for name, rope in ROPES.items():
        new = {**base, "rope_parameters": rope}
        if "original_max_position_embeddings" in rope:
            new["max_position_embeddings"] = int(rope["factor"] * rope["original_max_position_embeddings"])
        logits = {}
        for dialect, settings in ((name, new), (f"{name}-old", old_dialect(new))):
            folder = out / "rope" / dialect
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
            config = transformers.LlamaConfig.from_pretrained(folder, attn_implementation="eager")
            model = build("llama", config, 0)
            with torch.no_grad():
                logits[dialect] = model(ids).logits[0]
        same = torch.equal(logits[name], logits[f"{name}-old"])
        assert same, f"transformers reads the two dialects of {name} differently"
        reference[f"logits.{name}"] = logits[name]
    with torch.no_grad():
        plain = build("llama", make_config("llama"), 0)(ids).logits[0]
    for name in ROPES:
        apart = (reference[f"logits.{name}"] - plain).abs().max().item()
        assert apart > 0.1, f"{name} cannot be told from plain rope ({apart})"
        print(f"rope {name}: logits up to {apart:.2f} from the default's")
    save_file(reference, out / "rope" / "reference.safetensors", metadata={"format": "pt"})


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for arch in MODELS:
        write_model(out, arch)
    write_ropes(out)


if __name__ == "__main__":
    main()

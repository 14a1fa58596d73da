#!/usr/bin/env python3
"""Turns a GGUF file of a llama, qwen2 or qwen3 model into a Hugging Face folder with bf16 weights.

usage: gguf_to_hf.py IN.gguf OUT_FOLDER
needs: numpy

Writes config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json. Tensors are
read and written one at a time, so memory stays at a few times the largest of them. The result is the same, byte for
byte, on every machine: dequantisation is one multiplication and at most one addition in f32, then one rounding.
"""

import json
import mmap
import struct
import sys
from pathlib import Path

import numpy as np

# ---- ggml block formats: bytes -> f32, one function each; rows of `b` are blocks ----


def f16_at(b, start):
    return b[:, start:start + 2].copy().view(np.float16).astype(np.float32)


def nibbles(b):
    """Low halves of all bytes, then high halves: ggml's order within a block of 32."""
    return np.concatenate([b & 15, b >> 4], 1)


def q4_1(b):
    return nibbles(b[:, 4:]).astype(np.float32) * f16_at(b, 0) + f16_at(b, 2)


def q5_0(b):
    high = np.unpackbits(b[:, 2:6], axis=1, bitorder="little")
    return f16_at(b, 0) * ((nibbles(b[:, 6:]) | high << 4).astype(np.float32) - 16)


def q8_0(b):
    return b[:, 2:].view(np.int8).astype(np.float32) * f16_at(b, 0)


def q4_k(b):
    n = len(b)
    # Twelve bytes hold eight 6-bit scales and eight 6-bit minima. The first four of each are whole in bytes 0..8;
    # the last four take their low halves from bytes 8..12 and their top two bits from the spare bits of 0..8.
    s = b[:, 4:16]
    scale = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6) << 4], 1).astype(np.float32)
    least = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6) << 4], 1).astype(np.float32)
    q = b[:, 16:].reshape(n, 4, 1, 32)
    q = np.concatenate([q & 15, q >> 4], 2).reshape(n, 8, 32).astype(np.float32)
    d, m = f16_at(b, 0) * scale, f16_at(b, 2) * least
    return (d[:, :, None] * q - m[:, :, None]).reshape(n, 256)


def q6_k(b):
    n = len(b)
    low = b[:, :128].reshape(n, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], 2).reshape(n, 2, 4, 32)
    high = b[:, 128:192].reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    q = (low | (high & 3) << 4).astype(np.float32) - 32
    scale = f16_at(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32)
    return (q.reshape(n, 16, 16) * scale[:, :, None]).reshape(n, 256)


# ggml type number: (name, elements in a block, bytes in a block, decoder)
TYPES = {
    0: ("F32", 1, 4, lambda b: b.view(np.float32)),
    3: ("Q4_1", 32, 20, q4_1),
    6: ("Q5_0", 32, 22, q5_0),
    8: ("Q8_0", 32, 34, q8_0),
    12: ("Q4_K", 256, 144, q4_k),
    14: ("Q6_K", 256, 210, q6_k),
}


class Gguf:
    """The metadata and the tensor directory of a GGUF file, whose data stay on disk until a tensor is asked for."""

    SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        file = open(path, "rb")
        self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        if self.data[:4] != b"GGUF":
            sys.exit(f"{path}: not a GGUF file")
        self.at = 4
        version, tensor_count, field_count = self.take("I"), self.take("Q"), self.take("Q")
        if version not in (2, 3):
            sys.exit(f"{path}: GGUF version {version}, this script reads 2 and 3")
        self.fields = {}
        for _ in range(field_count):
            name = self.string()
            self.fields[name] = self.value(self.take("I"))
        self.tensors = {}
        for _ in range(tensor_count):
            name = self.string()
            shape = [self.take("Q") for _ in range(self.take("I"))][::-1]
            kind, offset = self.take("I"), self.take("Q")
            if kind not in TYPES:
                sys.exit(f"{path}: tensor {name} has ggml type {kind}, which this script does not decode")
            self.tensors[name] = (shape, kind, offset)
        align = self.fields.get("general.alignment", 32)
        self.start = (self.at + align - 1) // align * align

    def take(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(self.SCALARS[kind])

    def tensor(self, name):
        """The tensor as f32."""
        shape, kind, offset = self.tensors[name]
        _, block_len, block_bytes, decode = TYPES[kind]
        count = int(np.prod(shape))
        assert count % block_len == 0, name
        raw = np.frombuffer(self.data, np.uint8, count // block_len * block_bytes, self.start + offset)
        return decode(raw.reshape(-1, block_bytes)).reshape(shape)


# ---- weights ----

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{INNER[parts[2]]}.{parts[3]}"
    return f"{OUTER[parts[0]]}.{parts[1]}"


def half_split(rows, heads):
    """Undoes the order in which llama files keep the rows of Q and K: interleaved rotary pairs, back to two halves."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def to_bf16(x):
    """f32 to bf16 bits, to nearest, ties to even. Weights hold no NaN, which this would not keep."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")


def write_weights(gguf, arch, path):
    """Writes the safetensors file; returns (tied, vocabulary rows)."""
    sources = {hf_name(name): name for name in gguf.tensors}
    # These models are published with tied embeddings. A file that holds the matrix twice holds it once coarse (for
    # looking tokens up) and once fine (for the head): keep the fine copy for both.
    tied = "lm_head.weight" not in sources
    if not tied:
        sources["model.embed_tokens.weight"] = sources.pop("lm_head.weight")
        tied = True
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(sources):
        shape = gguf.tensors[sources[name]][0]
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    field = lambda key: gguf.fields[f"{arch}.{key}"]
    heads = {"q_proj": "attention.head_count", "k_proj": "attention.head_count_kv"}
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(sources):
            x = gguf.tensor(sources[name])
            assert np.isfinite(x).all(), f"{sources[name]} holds values that are not finite"
            projection = name.split(".")[-2]
            if arch == "llama" and projection in heads:
                x = half_split(x, field(heads[projection]))
            to_bf16(x).tofile(out)
    return tied, header["model.embed_tokens.weight"]["shape"][0]


# ---- configuration and tokenizer ----


def token_texts(gguf):
    return gguf.fields["tokenizer.ggml.tokens"]


def stop_ids(gguf):
    """The end of a turn first, then the end of a text: generation stops at either."""
    ids = [gguf.fields["tokenizer.ggml.eos_token_id"]]
    if "<|endoftext|>" in token_texts(gguf):
        ids.append(token_texts(gguf).index("<|endoftext|>"))
    return list(dict.fromkeys(ids))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_configs(gguf, arch, tied, vocab_rows, out):
    field = lambda key: gguf.fields.get(f"{arch}.{key}")
    heads = field("attention.head_count")
    bos = gguf.fields.get("tokenizer.ggml.bos_token_id")
    config = {
        "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[arch] + "ForCausalLM"],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length") or field("embedding_length") // heads,
        "max_position_embeddings": field("context_length"),
        "rope_theta": field("rope.freq_base"),
        # GGUF keeps it as f32: 1e-5 comes out as 9.99999974e-06.
        "rms_norm_eps": float(f"{field('attention.layer_norm_rms_epsilon'):.6g}"),
        "tie_word_embeddings": tied,
        "vocab_size": vocab_rows,
        "bos_token_id": bos,
        "eos_token_id": gguf.fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", {"bos_token_id": bos, "eos_token_id": stop_ids(gguf)})


QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE_TOKENIZERS = {
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ],
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def write_tokenizer(gguf, arch, out):
    texts, kinds = token_texts(gguf), gguf.fields["tokenizer.ggml.token_type"]
    pre = gguf.fields["tokenizer.ggml.pre"]
    added = [i for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)]
    last_normal = max(i for i, kind in enumerate(kinds) if kind == NORMAL)
    # Control tokens that lie among the normal ones (SmolLM2's are 0..16) must be in the vocabulary too, or the
    # tokenizer library numbers them anew from the end.
    vocab = {text: i for i, (text, kind) in enumerate(zip(texts, kinds))
             if kind == NORMAL or (i in added and i < last_normal)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": texts[i], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": kinds[i] == CONTROL} for i in added],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [m.split(" ") for m in gguf.fields["tokenizer.ggml.merges"]]},
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": texts[gguf.fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.fields[f"{arch}.context_length"],
        "chat_template": gguf.fields["tokenizer.chat_template"],
    })


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    gguf, out = Gguf(sys.argv[1]), Path(sys.argv[2])
    arch = gguf.fields["general.architecture"]
    if arch not in ("llama", "qwen2", "qwen3") or gguf.fields.get("tokenizer.ggml.pre") not in PRE_TOKENIZERS:
        sys.exit(f"{sys.argv[1]}: architecture {arch} with tokenizer {gguf.fields.get('tokenizer.ggml.pre')} is not "
                 "one that this script converts")
    out.mkdir(parents=True, exist_ok=True)
    tied, vocab_rows = write_weights(gguf, arch, out / "model.safetensors")
    write_configs(gguf, arch, tied, vocab_rows, out)
    write_tokenizer(gguf, arch, out)
    license = gguf.fields.get("general.license", "not stated in the file")
    print(f"{out}: {gguf.fields.get('general.name', arch)}, licence in the file: {license}")


if __name__ == "__main__":
    main()

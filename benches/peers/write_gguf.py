"""Writes a Qwen3 checkpoint in bf16 as a GGUF file without a vocabulary.

usage: write_gguf.py FOLDER OUT.gguf bf16|f16|q8_0

Matrices are in the given format, the embedding, which is the head too, like all others; gains of norms are f32.
"""

import sys

import gguf
import numpy as np

import checkpoint

FILE_TYPES = {
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    """llama.cpp's name of a tensor; model.layers.3.mlp.up_proj.weight is blk.3.ffn_up.weight."""
    path = name.removesuffix(".weight")
    if path in OUTSIDE:
        return f"{OUTSIDE[path]}.weight"
    layer, part = path.removeprefix("model.layers.").split(".", 1)
    return f"blk.{int(layer)}.{IN_LAYER[part]}.weight"


def shape(writer, config, file_type):
    """What llama.cpp asks of a qwen3 model."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("no_vocab")


def main():
    folder, out, weights = sys.argv[1:]
    config = checkpoint.config(folder)
    if config["model_type"] != "qwen3" or not config["tie_word_embeddings"]:
        sys.exit(f"write_gguf: {folder} is no Qwen3 with a tied head")
    writer = gguf.GGUFWriter(out, "qwen3")
    shape(writer, config, FILE_TYPES[weights])
    for name, dtype, elements in checkpoint.tensors(folder):
        name = gguf_name(name)
        if elements.ndim == 1:
            writer.add_tensor(name, checkpoint.to_f32(dtype, elements))
        elif weights == "bf16":
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, checkpoint.to_bf16(dtype, elements).view(np.uint8), raw_dtype=kind)
        elif weights == "f16":
            writer.add_tensor(name, checkpoint.to_f32(dtype, elements).astype(np.float16))
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            codes = gguf.quants.quantize(checkpoint.to_f32(dtype, elements), kind)
            writer.add_tensor(name, codes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()

"""Reads a Hugging Face folder with numpy alone: its config.json and its tensors of f32 or bf16."""

import json
from pathlib import Path

import numpy as np


def config(folder):
    """The model's shape."""
    return json.loads((Path(folder) / "config.json").read_text())


def tensors(folder):
    """Name, dtype ("F32" or "BF16") and elements of every tensor, one at a time; bf16 as its 16 bits.

    model.safetensors: the length of a header in 8 bytes, the header as JSON, the tensors.
    """
    for path in sorted(Path(folder).glob("*.safetensors")):
        file = np.memmap(path, np.uint8, "r")
        start = 8 + int(file[:8].view("<u8")[0])
        header = json.loads(file[8:start].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            kind = {"F32": "<f4", "BF16": "<u2"}[entry["dtype"]]
            yield name, entry["dtype"], file[start + first : start + last].view(kind).reshape(entry["shape"])


def to_f32(dtype, elements):
    """The elements as f32: bf16 is the upper half of f32."""
    if dtype == "BF16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return np.array(elements, np.float32)


def to_bf16(dtype, elements):
    """The elements as the 16 bits of bf16; they must be bf16 already."""
    if dtype != "BF16":
        raise ValueError("the checkpoint must be stored in bf16, so that every format is made from the same weights")
    return np.array(elements)

"""Times PyTorch's training update of a Qwen3 checkpoint in f32: transformers' model, cross-entropy of every token,
backward, AdamW.

usage: torch_train.py FOLDER THREADS ROWS LENGTH UPDATES

PyTorch's best settings on a CPU: scaled_dot_product_attention, the fused AdamW. torch.compile is not used: it needs a
C++ compiler and minutes, and this is the model as people train it.
"""

import torch
import transformers

import jobs


def main():
    folder, threads, rows, length, updates = jobs.arguments()
    torch.set_num_threads(threads)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=jobs.LEARNING_RATE,
        betas=(jobs.BETA1, jobs.BETA2),
        eps=jobs.EPSILON,
        weight_decay=jobs.WEIGHT_DECAY,
        fused=True,
    )
    inputs, targets = (torch.from_numpy(x.astype("int64")) for x in jobs.ids(rows, length, model.config.vocab_size))

    def update():
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    version = f"{torch.__version__}, transformers {transformers.__version__}"
    jobs.run("torch", version, "sdpa, fused AdamW, no torch.compile", threads, (rows, length), updates, update)


if __name__ == "__main__":
    main()

"""Times JAX's training update of a Qwen3 checkpoint in f32: the model written out, cross-entropy of every token, backward,
AdamW, all of it one jitted function.

usage: jax_train.py FOLDER THREADS ROWS LENGTH UPDATES

JAX's best settings on a CPU: one jitted update that is given its buffers (donation), layers unrolled.
"""

import os

import jobs

folder, threads, rows, length, updates = jobs.arguments()
# XLA takes as many threads as it may use processors; both before JAX is loaded.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import checkpoint  # noqa: E402

CONFIG = checkpoint.config(folder)
LAYERS, HEAD_DIM, EPSILON = CONFIG["num_hidden_layers"], CONFIG["head_dim"], CONFIG["rms_norm_eps"]
HEADS, KV_HEADS = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]


def norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * gain


def angles():
    """Cosines and sines of the rotary embedding, [length, 1, head_dim / 2]."""
    frequencies = CONFIG["rope_theta"] ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turns = jnp.arange(length)[:, None, None] * frequencies
    return jnp.cos(turns), jnp.sin(turns)


def rotate(x, cos, sin):
    """x: [rows, length, heads, head_dim]; the halves of a head are the coordinates of its planes."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(weights, at, x):
    """Grouped-query attention with norms of queries and keys. x: [rows, length, hidden]."""
    cos, sin = angles()
    heads = lambda name, count: (x @ weights[f"{at}.{name}.weight"].T).reshape(rows, length, count, HEAD_DIM)  # noqa: E731
    q = rotate(norm(heads("q_proj", HEADS), weights[f"{at}.q_norm.weight"]), cos, sin)
    k = rotate(norm(heads("k_proj", KV_HEADS), weights[f"{at}.k_norm.weight"]), cos, sin)
    v = heads("v_proj", KV_HEADS)
    q = q.reshape(rows, length, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k) * HEAD_DIM**-0.5
    seen = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    out = jnp.einsum("bkgqs,bskd->bqkgd", shares, v).reshape(rows, length, HEADS * HEAD_DIM)
    return out @ weights[f"{at}.o_proj.weight"].T


def mlp(weights, at, x):
    gate, up = x @ weights[f"{at}.gate_proj.weight"].T, x @ weights[f"{at}.up_proj.weight"].T
    return (jax.nn.silu(gate) * up) @ weights[f"{at}.down_proj.weight"].T


def loss(weights, inputs, targets):
    """Mean cross-entropy over all tokens."""
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[inputs]
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        x = x + attention(weights, f"{at}.self_attn", norm(x, weights[f"{at}.input_layernorm.weight"]))
        x = x + mlp(weights, f"{at}.mlp", norm(x, weights[f"{at}.post_attention_layernorm.weight"]))
    logits = norm(x, weights["model.norm.weight"]) @ embedding.T
    taken = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - taken)


def adamw(count, weight, gradient, mean, square):
    """One tensor's update; the decay is decoupled."""
    mean = jobs.BETA1 * mean + (1 - jobs.BETA1) * gradient
    square = jobs.BETA2 * square + (1 - jobs.BETA2) * gradient * gradient
    step = (mean / (1 - jobs.BETA1**count)) / (jnp.sqrt(square / (1 - jobs.BETA2**count)) + jobs.EPSILON)
    return weight - jobs.LEARNING_RATE * (step + jobs.WEIGHT_DECAY * weight), mean, square


def update(weights, means, squares, count, inputs, targets):
    value, gradients = jax.value_and_grad(loss)(weights, inputs, targets)
    new = {name: adamw(count, weights[name], gradients[name], means[name], squares[name]) for name in weights}
    return *({name: new[name][i] for name in new} for i in range(3)), value


def main():
    step = jax.jit(update, donate_argnums=(0, 1, 2))
    weights = {name: jnp.asarray(checkpoint.to_f32(dtype, x)) for name, dtype, x in checkpoint.tensors(folder)}
    zeros = lambda: jax.tree.map(jnp.zeros_like, weights)  # noqa: E731
    state = [weights, zeros(), zeros()]
    inputs, targets = map(jnp.asarray, jobs.ids(rows, length, CONFIG["vocab_size"]))
    count = 0

    def once():
        nonlocal state, count
        count += 1
        *state, value = step(*state, float(count), inputs, targets)
        jax.block_until_ready(state)
        return float(value)

    jobs.run("jax", jax.__version__, "jit with donation", threads, (rows, length), updates, once)


if __name__ == "__main__":
    main()

"""What both training drivers share: arguments, token ids, AdamW's numbers and the line that is printed."""

import json
import sys
import time

import numpy as np

LEARNING_RATE = 1e-4
BETA1, BETA2, EPSILON, WEIGHT_DECAY = 0.9, 0.95, 1e-8, 0.01
WARM_UPDATES = 2  # not counted: the first ones compile, and bring memory in


def arguments():
    """FOLDER THREADS ROWS LENGTH UPDATES."""
    if len(sys.argv) != 6:
        sys.exit(f"usage: {sys.argv[0]} FOLDER THREADS ROWS LENGTH UPDATES")
    return sys.argv[1], *map(int, sys.argv[2:])


def ids(rows, length, vocab):
    """Inputs and the tokens after them, [rows, length] each: every token is predicted from those before it."""
    line = np.random.default_rng(1).integers(0, vocab, (rows, length + 1), dtype=np.int32)
    return line[:, :-1], line[:, 1:]


def run(peer, version, settings, threads, shape, updates, update):
    """Times `update`, which returns the loss as a number once everything is computed, and prints the JSON object."""
    seconds, losses = [], []
    for _ in range(WARM_UPDATES + updates):
        start = time.perf_counter()
        losses.append(update())
        seconds.append(time.perf_counter() - start)
    rows, length = shape
    figure = {
        "what": "train",
        "batch": rows,
        "context": length,
        "tokens": rows * length,
        "seconds": [round(s, 6) for s in seconds[WARM_UPDATES:]],
    }
    report = {
        "peer": peer,
        "version": version,
        "settings": settings,
        "threads": threads,
        "check": round(losses[0], 6),  # mean loss of the checkpoint in nats a token, the same of all
        "figures": [figure],
    }
    print(json.dumps(report))

#!/usr/bin/env python3
"""Writes float8.json: what ml_dtypes makes of both 8-bit formats.

usage: float8.py [OUT]          OUT defaults to the folder of this script
needs: numpy ml_dtypes (README.md names the versions used)
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

COMMAND = "python tests/golden/float8.py"
ABOUT = ("values: code 0..255 to number. encodings: number to code, to nearest, ties to even: every middle between two "
         "neighbouring values, its two neighbours in f32, and the ends of the range. A number past the format's range "
         "has the code of ml_dtypes, NaN or infinity; a saturating encoder gives the largest finite code of that sign "
         "instead, and those rows say overflow.")


def number(x):
    return "nan" if np.isnan(x) else "inf" if x == np.inf else "-inf" if x == -np.inf else float(x)


def describe(dtype):
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    finite = np.unique(np.abs(values[np.isfinite(values)]))
    # What the next value would be if the range went on; the last middle is where rounding leaves the range.
    beyond = 2 * finite[-1] - finite[-2]
    steps = np.append(finite, beyond)
    middles = (steps[:-1] + steps[1:]) / 2  # exact in f32: two significant bits more than a code
    below = [np.nextafter(np.float32(m), np.float32(0)) for m in middles]
    above = [np.nextafter(np.float32(m), np.float32(np.inf)) for m in middles]
    edges = [*finite, *middles, *below, *above, finite[1] / 4, 2.0**-126, 2.0**-149, 464.0, 465.0, 480.0, 500.0, 57344.0,
             61440.0, 61441.0, 65536.0, 3e38, np.finfo(np.float32).max, np.inf]
    rows = []
    with np.errstate(over="ignore", invalid="ignore"):
        for x in sorted({float(np.float32(e)) for e in edges}):
            for signed in (x, -x):
                code = int(np.array(signed, np.float32).astype(dtype).view(np.uint8))
                rows.append([number(signed), code] + (["overflow"] if not np.isfinite(values[code]) else []))
    return {"values": [number(v) for v in values], "encodings": rows,
            "nan_codes": [int(c) for c in np.flatnonzero(np.isnan(values))]}


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    doc = {"command": COMMAND, "ml_dtypes": ml_dtypes.__version__, "about": ABOUT,
           "e4m3fn": describe(ml_dtypes.float8_e4m3fn), "e5m2": describe(ml_dtypes.float8_e5m2)}
    lines = json.dumps(doc, separators=(",", ":")).replace("],[", "],\n[").replace(',"', ',\n"')
    lines = lines.replace(',\n"overflow"', ',"overflow"')
    json.loads(lines)
    (out / "float8.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()

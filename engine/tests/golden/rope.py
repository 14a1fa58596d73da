# Inverse frequencies of the rope variants in f64, from their formulas.
from math import log, pi, floor, ceil
def base(theta, d): return [theta ** (-2 * i / d) for i in range(d // 2)]
def linear(f, factor): return [x / factor for x in f]
def llama3(f, factor, lo, hi, orig):
    out = []
    for x in f:
        wl = 2 * pi / x
        if wl < orig / hi: out.append(x)
        elif wl > orig / lo: out.append(x / factor)
        else:
            s = (orig / wl - lo) / (hi - lo)
            out.append((1 - s) * x / factor + s * x)
    return out
def yarn(theta, d, factor, orig, fast=32, slow=1, trunc=True):
    dim = lambda r: d * log(orig / (r * 2 * pi)) / (2 * log(theta))
    lo, hi = dim(fast), dim(slow)
    if trunc: lo, hi = floor(lo), ceil(hi)
    lo, hi = max(lo, 0), min(hi, d - 1)
    if lo == hi: hi += 0.001
    out = []
    for i, x in enumerate(base(theta, d)):
        r = min(max((i - lo) / (hi - lo), 0), 1)
        out.append(x / factor * r + x * (1 - r))
    return out
def emit(name, rope, d, v, att):
    print(f"""
    #[test]
    fn {name}() {{
        let rope = Rope {{ {rope} }};
        check(rope, {d}, &[{", ".join(repr(x) for x in v)}], {att!r});
    }}""")
emit("golden_default", "theta: 1e6, kind: RopeKind::Default", 32, base(1e6, 32), 1.0)
emit("golden_linear", "theta: 10_000.0, kind: RopeKind::Linear { factor: 4.0 }", 16, linear(base(1e4, 16), 4), 1.0)
emit("golden_llama3", "theta: 500_000.0, kind: RopeKind::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 8192 }", 64, llama3(base(5e5, 64), 8, 1, 4, 8192), 1.0)
emit("golden_yarn", "theta: 1e6, kind: RopeKind::Yarn { factor: 4.0, original: 32_768, beta_fast: 32.0, beta_slow: 1.0, attention_factor: 1.138_629_436_111_989, truncate: true }", 64, yarn(1e6, 64, 4, 32768), 0.1*log(4)+1)
emit("golden_yarn_untruncated", "theta: 150_000.0, kind: RopeKind::Yarn { factor: 32.0, original: 4096, beta_fast: 32.0, beta_slow: 1.0, attention_factor: 1.25, truncate: false }", 32, yarn(150000, 32, 32, 4096, trunc=False), 1.25)

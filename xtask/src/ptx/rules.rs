//! What no kernel may contain, because it would make results depend on a card, a schedule or a compiler's choice.

use super::text::{self, code};

/// Looks at the instructions of one committed PTX file.
pub fn in_ptx(name: &str, ptx: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (i, line) in ptx.lines().enumerate() {
        for statement in code(line).split(';') {
            if let Some(why) = problem(statement.trim()) {
                found.push(format!("  {name}:{}: {}: {why}", i + 1, statement.trim()));
            }
        }
    }
    // Without it ptxas guesses how many registers a thread may take, and no launch can be checked against the kernel.
    let unbounded = text::entries(ptx).into_iter().filter(|entry| entry.threads.is_none());
    found.extend(unbounded.map(|entry| format!("  {name}: {}: no BOUNDS on the threads of a block", entry.name)));
    found
}

fn problem(statement: &str) -> Option<&'static str> {
    // A guard, or the brace of a scope, stands before the opcode.
    let mut words = statement.split_whitespace().skip_while(|word| word.starts_with('@') || *word == "{");
    let opcode = words.next()?;
    if opcode == ".local" || statement.contains("__local_depot") {
        return Some("local memory; index arrays by constants only");
    }
    if opcode == ".func" || opcode == ".visible" && words.next() == Some(".func") {
        return Some("a function that was not inlined");
    }
    if opcode.starts_with('.') {
        return None;
    }
    let parts: Vec<&str> = opcode.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    let is_float = parts.iter().any(|part| matches!(*part, "f16" | "f16x2" | "bf16" | "bf16x2" | "f32" | "f64"));
    let rounds = parts.iter().any(|part| matches!(*part, "rn" | "rz" | "rm" | "rp"));
    match parts[0] {
        "call" => Some("a call; everything is inlined"),
        "atom" | "red" if is_float => Some("a float atomic; its order is not fixed"),
        "ld" | "st" if has("local") => Some("local memory; index arrays by constants only"),
        "add" | "sub" | "mul" | "fma" | "mad" | "div" | "sqrt" | "rcp" if is_float && !rounds => {
            Some("no rounding written out, so ptxas may fuse or approximate it")
        }
        "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => Some("an approximation; use the functions of gpu.cuh"),
        _ if has("approx") => Some("an approximation; use the functions of gpu.cuh"),
        _ if has("ftz") => Some("flushes subnormals, which the CPU does not"),
        _ => None,
    }
}

/// Looks at one source: what differs by target is told apart in `ptx/gpu.cuh` and nowhere else.
pub fn in_source(name: &str, source: &str) -> Vec<String> {
    if name == "ptx/gpu.cuh" {
        return Vec::new();
    }
    let lines = source.lines().enumerate().filter(|(_, line)| code(line).contains("__CUDA_ARCH__"));
    lines.map(|(i, _)| format!("  {name}:{}: __CUDA_ARCH__ belongs into ptx/gpu.cuh alone", i + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_instruction_with_its_line() {
        for bad in [
            "ex2.approx.ftz.f32 \t%f1, %f2;",
            "@%p1 rcp.approx.f32 %f1, %f2;",
            "div.full.f32 %f1, %f2, %f3;",
            "add.f32 %f1, %f2, %f3;",
            "mul.rn.ftz.f32 %f1, %f2, %f3;",
            "mul.f16x2 %r1, %r2, %r3;",
            "{ .reg .b32 t; red.global.add.f32 [%rd1], %f1; }",
            "atom.global.add.f64 %fd1, [%rd1], %fd2;",
            "call.uni (retval0), f, (param0);",
            ".func f(",
            ".visible .func f(",
            ".local .align 4 .b8 \t__local_depot0[16];",
            "ld.local.f32 %f1, [%rd1];",
        ] {
            let found = in_ptx("a.ptx", &format!("\tret;\n\t{bad}\n"));
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("  a.ptx:2: "), "{found:?}");
        }
    }

    #[test]
    fn what_kernels_do_is_allowed() {
        for good in [
            "add.rn.f32 %f1, %f2, %f3;",
            "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;",
            "max.f32 %f1, %f2, %f3;",
            "div.rn.f32 %f1, %f2, %f3;",
            "atom.global.add.u64 %rd1, [%rd2], %rd3;",
            "red.global.add.u32 [%rd1], %r1;",
            "mul.rn.f16x2 %r1, %r2, %r3;",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};",
            "// ex2.approx would be refused",
            ".visible .entry f(\n.maxntid 32, 1, 1",
            "cvt.rn.bf16x2.f32 %r1, %f1, %f2;",
        ] {
            assert!(in_ptx("a.ptx", good).is_empty(), "{good}");
        }
    }

    #[test]
    fn every_kernel_bounds_its_block() {
        let ptx =
            ".visible .entry bounded(\n)\n.maxntid 128, 1, 1\n{\n\tret;\n}\n.visible .entry free(\n)\n{\n\tret;\n}\n";
        assert_eq!(in_ptx("a.ptx", ptx), ["  a.ptx: free: no BOUNDS on the threads of a block"]);
    }

    #[test]
    fn targets_are_told_apart_in_the_prelude_alone() {
        let source = "#if __CUDA_ARCH__ >= 890\n";
        assert_eq!(in_source("ptx/src/ops/a/a.cu", source).len(), 1);
        assert!(in_source("ptx/gpu.cuh", source).is_empty());
        assert!(in_source("ptx/src/ops/a/a.cu", "// not by __CUDA_ARCH__\n").is_empty());
    }
}

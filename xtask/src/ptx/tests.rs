//! The command's decisions, without a compiler.

use super::*;

fn clang(version: &str) -> Clang {
    clang::tests_only(version)
}

const PTX: &str = "\tadd.s32 \t%r1, %r2, 1;\n\tret;\n";

#[test]
fn only_another_release_may_give_other_names() {
    let renamed = PTX.replace("%r2", "%r7");
    let other = PTX.replace(", 1;", ", 2;");
    let by = |version, fresh: &str| verdict("a.ptx", PTX, fresh, &clang(version));
    assert_eq!(by(clang::VERSION, PTX), Ok(None));
    assert!(by(clang::VERSION, &renamed).is_err_and(|why| why.contains("only in layout or names")));
    assert!(by("19.1.1", &renamed).is_ok_and(|note| note.is_some_and(|note| note.contains("the same instructions"))));
    for version in [clang::VERSION, "19.1.1"] {
        let why = by(version, &other).expect_err("another instruction");
        assert!(why.contains("%r#0, %r#1, 1;") && why.contains("%r#0, %r#1, 2;"), "{why}");
    }
}

#[test]
fn files_without_a_source_are_found() {
    let root = std::env::temp_dir().join(format!("leeway-xtask-{}", std::process::id()));
    let write = |name: &str| {
        let path = root.join(OPS).join(name);
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
        std::fs::write(path, "").expect("a file");
    };
    for name in ["a/a.cu", "a/a.sm80.ptx", "a/a.sm70.ptx", "b/b.sm80.ptx", "c/other.cu", "mod.rs"] {
        write(name);
    }
    let outcome = ops(&root);
    std::fs::remove_dir_all(&root).expect("what was just written");
    let (ops, findings) = outcome.expect("all folders can be read");
    assert_eq!(ops, [Op { folder: format!("{OPS}/a"), name: "a".to_owned() }]);
    let findings = findings.join("\n");
    for name in ["a/a.sm70.ptx", "b/b.sm80.ptx", "c/other.cu"] {
        assert!(findings.contains(name), "{findings}");
    }
    assert!(!findings.contains("a/a.sm80.ptx"), "{findings}");
}

#[test]
fn results_keep_the_order_of_items() {
    let items: Vec<usize> = (0..100).collect();
    assert_eq!(parallel(&items, |i| i * 2), (0..200).step_by(2).collect::<Vec<_>>());
    assert!(parallel(&[], |i: &usize| *i).is_empty());
}

//! The models that all run: Qwen3 with a tied head and seeded random weights, made once by `leeway init`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::Llama;
use crate::run;

/// A model's shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub vocab: usize,
}

pub const QWEN3_06B: Shape =
    Shape { name: "0.6b", hidden: 1024, layers: 28, heads: 16, kv_heads: 8, head_dim: 128, ffn: 3072, vocab: 151_936 };
pub const M107: Shape =
    Shape { name: "107m", hidden: 768, layers: 12, heads: 12, kv_heads: 4, head_dim: 64, ffn: 2304, vocab: 32_000 };
pub const M3: Shape =
    Shape { name: "3.3m", hidden: 256, layers: 4, heads: 4, kv_heads: 2, head_dim: 64, ffn: 768, vocab: 512 };
/// For `cargo test`.
pub const TINY: Shape =
    Shape { name: "tiny", hidden: 64, layers: 2, heads: 2, kv_heads: 1, head_dim: 32, ffn: 96, vocab: 64 };

impl Shape {
    /// Bytes of keys and values in f16 of so many tokens.
    pub fn kv_f16_bytes(self, tokens: usize) -> f64 {
        (tokens * self.layers * 2 * self.kv_heads * self.head_dim * 2) as f64
    }

    /// The model's folder below `models` with weights stored in bf16 or f32, made when it is not there.
    pub fn checkpoint(self, leeway: &Path, models: &Path, dtype: &str) -> Result<PathBuf, String> {
        let folder = models.join(format!("{}-{dtype}", self.name));
        if folder.exists() {
            return Ok(folder);
        }
        eprintln!("peers: making {}", folder.display());
        let begun = models.join(format!("{}-{dtype}.begun", self.name));
        std::fs::remove_dir_all(&begun).or_else(absent).map_err(|e| format!("{}: {e}", begun.display()))?;
        let mut command = Command::new(leeway);
        command
            .args(["init", "--quiet", "--dtype", dtype, "--std", "0.02", "--rope-theta", "1e6", "--out"])
            .arg(&begun);
        for (key, value) in [
            ("--hidden", self.hidden),
            ("--layers", self.layers),
            ("--heads", self.heads),
            ("--kv-heads", self.kv_heads),
            ("--head-dim", self.head_dim),
            ("--ffn", self.ffn),
            ("--vocab", self.vocab),
            ("--max-positions", 4096),
        ] {
            command.arg(key).arg(value.to_string());
        }
        run::output(&mut command)?;
        std::fs::rename(&begun, &folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }
}

/// A checkpoint in bf16 as a GGUF file beside it, made when it is not there.
pub fn gguf(shape: Shape, llama: &Llama, scripts: &Path, checkpoint: &Path, weights: &str) -> Result<PathBuf, String> {
    let file = checkpoint.with_file_name(format!("{}-{weights}.gguf", shape.name));
    let begun = file.with_extension("begun");
    if !file.exists() {
        eprintln!("peers: writing {}", file.display());
        let mut command = Command::new(&llama.python);
        command.arg(scripts.join("write_gguf.py")).arg(checkpoint).arg(&begun).arg(weights);
        run::output(command.env("PYTHONDONTWRITEBYTECODE", "1"))?;
        std::fs::rename(&begun, &file).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(file)
}

fn absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

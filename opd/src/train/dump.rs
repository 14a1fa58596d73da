//! A loss that is no number stops the run; what it was computed from is kept in `out/failed/<update>.json`.

use std::path::{Path, PathBuf};

use engine::rollout::Rollout;
use serde_json::{Value, json};

use super::{TrainError, Trainer, read};
use crate::loss::LossError;
use crate::sequences::Row;

impl Trainer {
    /// The error of a micro-batch that begins with row `first` of the update or evaluation; where its loss is no number,
    /// with a dump. `rollouts` are those of its rows, where there are any.
    pub(super) fn failed(
        &self,
        update: u64,
        first: usize,
        rows: &[Row],
        rollouts: &[&Rollout],
        source: LossError,
    ) -> TrainError {
        let (row, token_id, what) = match source {
            LossError::Device(source) => return TrainError::Device { update, source },
            LossError::Row { row, token, what } => (row, token, what),
        };
        let (mut rollout, mut token) = (0, row);
        while token >= rows[rollout].targets().len() {
            token -= rows[rollout].targets().len();
            rollout += 1;
        }
        let dump = json!({
            "update": update, "weights_version": read(&self.master).updates, "rollout": first + rollout,
            "token": token, "token_id": token_id, "position": rows[rollout].prompt + token, "what": what,
            "weights_not_finite": self.weights_not_finite(), "origin": self.origin,
            "first_rollout": first, "rollouts": lines(rows, rollouts),
        });
        let path = self.config.out.join("failed").join(format!("{update:06}.json"));
        let kept = match write(&path, &dump) {
            Ok(()) => format!("what it was computed from is in {}", path.display()),
            Err(error) => format!("{}: {error}", path.display()),
        };
        TrainError::Loss { update, rollout: first + rollout, token, token_id, what, kept }
    }

    /// The first weight that is no number, if that is the reason.
    fn weights_not_finite(&self) -> Option<Value> {
        let master = read(&self.master);
        let weights = &master.weights;
        (0..weights.params().len()).find_map(|i| {
            let element = ptx::ops::grad_norm::all_finite(&self.cpu, weights.tensor(i))?;
            Some(json!({"tensor": weights.params()[i].name, "element": element}))
        })
    }
}

fn lines(rows: &[Row], rollouts: &[&Rollout]) -> Vec<Value> {
    let line = |(i, row): (usize, &Row)| {
        let mut line = json!({"prompt_ids": row.ids[..row.prompt], "ids": row.targets()});
        if let Some(rollout) = rollouts.get(i) {
            line["logprobs_rollout"] = json!(rollout.logprobs);
            line["versions"] = json!(rollout.versions);
            line["sample"] = json!(rollout.sample);
        }
        line
    };
    rows.iter().enumerate().map(line).collect()
}

fn write(path: &Path, dump: &Value) -> std::io::Result<()> {
    let folder: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
    std::fs::create_dir_all(folder)?;
    std::fs::write(path, format!("{dump:#}\n"))
}

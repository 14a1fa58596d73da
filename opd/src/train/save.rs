//! Checkpoints of a run: a Hugging Face folder with the weights version, and the trainer's own state beside it.
//!
//! `checkpoints/<update>/` gets its name when everything in it is on the disk. `trainer.json` carries the BLAKE3 of the
//! state file and of the rollouts that were under way, so that a damaged checkpoint is recognised and passed over.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use engine::checkpoint::{self, CheckpointError, Param, WriteOptions};
use engine::model::Gradients;
use ptx::mapped::MappedFile;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use super::{InForce, Origin, TrainError, Trainer, in_flight, read};
use crate::flow::Unfinished;
use crate::master::Master;
use crate::noise::Injected;

const IN_FLIGHT: &str = "in_flight.jsonl";
const STATE: &str = "trainer.safetensors";
const SEAL: &str = "trainer.json";

/// Why a checkpoint of the run cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The file system said no.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        source: std::io::Error,
    },
    /// The model folder.
    #[error(transparent)]
    Model(#[from] CheckpointError),
    /// Another process writes there.
    #[error("{path}: another run is writing there; wait for it, or set `out` to another folder", path = path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A run does not go into a model's folder.
    #[error("{path}: is a model folder; set `out` to a folder of the run's own", path = path.display())]
    ModelFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The prompts are others.
    #[error(
        "{path}: the run there has prompts with hash {before}, and the file now has {now}; put the file back as it was, or \
         set `out` to another folder", path = path.display()
    )]
    OtherPrompts {
        /// The checkpoint.
        path: PathBuf,
        /// Hash of the prompts then.
        before: String,
        /// Their hash now.
        now: String,
    },
    /// The run was configured otherwise.
    #[error(
        "{path}: the run there has another value of `{key}`; --resume goes on with the same run, so give the run file \
         that it began with, or set `out` to another folder",
        path = path.display()
    )]
    AnotherRun {
        /// The configuration of the run there.
        path: PathBuf,
        /// The first key that differs.
        key: String,
    },
    /// The run began with other weights.
    #[error("{path}: the run there began with {role} {before}, and the folder now holds {now}", path = path.display())]
    OtherWeights {
        /// The checkpoint.
        path: PathBuf,
        /// student, teacher or reference.
        role: &'static str,
        /// Its hash then.
        before: String,
        /// Its hash now.
        now: String,
    },
    /// The run began with another recipe.
    #[error(
        "{path}: the run's rollouts are by a recipe with hash {before}, and `rollout.recipe` now has {now}; put the recipe \
         file, or its calibration ids, back as they were", path = path.display()
    )]
    OtherRecipe {
        /// The checkpoint.
        path: PathBuf,
        /// Its hash then.
        before: String,
        /// Its hash now.
        now: String,
    },
    /// The run's rollouts were made elsewhere.
    #[error(
        "{path}: the run's rollouts and teacher scores were computed on {before}, and --device now is {now}, whose bits are \
         others; resume on the device that it began on, or set `out` to another folder", path = path.display()
    )]
    OtherDevice {
        /// The checkpoint.
        path: PathBuf,
        /// The kind of device then.
        before: String,
        /// The kind now.
        now: String,
    },
    /// The rollouts under way cannot be read.
    #[error("{path}: {what}", path = path.display())]
    InFlight {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The state is of another model.
    #[error("{path}: {what}; this run's student has other tensors: resume with the student it began with", path = path.display())]
    Other {
        /// Where.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seal {
    format: u32,
    update: u64,
    student: String,
    teacher: String,
    /// Hashes of the other teachers by name, of a run that has several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    teachers: BTreeMap<String, String>,
    /// Hash of the rollout recipe; checkpoints from before there were recipe files lack it.
    #[serde(default)]
    recipe: Option<String>,
    /// Kind of the device of rollouts and teacher; checkpoints from before there was more than one lack it.
    #[serde(default)]
    device: Option<String>,
    /// Hash of the reference, of a run whose target takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    /// Hash of the prompts, of a run that takes them from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompts: Option<String>,
    /// How strong injected noise is from this version on, where that was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    noise_sigma: Option<f64>,
    /// What rollouts are by from this version on, where that was lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_force: Option<InForce>,
    /// What the caller of the trainer keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guard: Option<serde_json::Value>,
    state_blake3: String,
    /// Of the rollouts under way, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_flight_blake3: Option<String>,
}

impl Trainer {
    /// Writes `out/checkpoints/<update>/`, with what the stages have under way.
    pub fn save(&mut self) -> Result<PathBuf, TrainError> {
        let updates = self.updates();
        let unfinished = match &mut self.stages {
            Some(stages) => stages.in_flight(updates).map_err(|source| TrainError::Wait { update: updates, source })?,
            None => Vec::new(),
        };
        Ok(self.write(&unfinished)?)
    }

    fn write(&self, unfinished: &[Unfinished]) -> Result<PathBuf, SaveError> {
        let master = read(&self.master);
        let dir = self.config.out.join("checkpoints").join(format!("{:06}", master.updates));
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| SaveError::Io { path, source }
        };
        if read_seal(&dir).is_some_and(|seal| is_whole(&dir, &seal)) {
            return Ok(dir); // this very version is there; a damaged one is replaced
        }
        fs::create_dir_all(dir.parent().expect("a folder in out")).map_err(io(&dir))?;
        let precision = master.precision().dtype();
        let mut version = master.version(&self.cpu);
        let config = &self.policy.model().config;
        let fetch = |param: &Param, out: &mut Vec<f32>| {
            out.resize(param.shape.iter().product(), 0.0);
            engine::model::WeightSource::rows(&mut version, &param.name, 0, param.shape[0], out)
                .expect("it reads from memory");
        };
        let options =
            WriteOptions { dtype: precision, aux_from: Some(&self.student_dir), shard_bytes: checkpoint::SHARD_BYTES };
        let state = |folder: &Path| {
            let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
            let bytes = encode(&master, self.noise.as_ref());
            write_synced(&folder.join(STATE), &bytes)?;
            let state_blake3 = hash(&bytes);
            let mut in_flight_blake3 = None;
            if !unfinished.is_empty() {
                let bytes = in_flight::encode(unfinished);
                write_synced(&folder.join(IN_FLIGHT), &bytes)?;
                in_flight_blake3 = Some(hash(&bytes));
            }
            let Origin { student, teacher, teachers, reference, recipe_hash, device_kind, prompts, .. } = self.origin();
            let (update, recipe, device) = (master.updates, Some(recipe_hash), Some(device_kind));
            let seal = Seal {
                format: 1,
                update,
                student,
                teacher,
                teachers,
                recipe,
                device,
                reference,
                prompts,
                noise_sigma: self.noise.as_ref().and_then(Injected::sigma),
                in_force: self.in_force.clone(),
                guard: self.kept.clone(),
                state_blake3,
                in_flight_blake3,
            };
            write_synced(&folder.join(SEAL), &serde_json::to_vec_pretty(&seal).expect("plain data"))
        };
        checkpoint::write_with(&dir, config, &options, fetch, state)?;
        Ok(dir)
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The name in a checkpoint of a version that stale rollouts still need.
fn past(version: u64) -> String {
    format!("past.{version}")
}

fn encode(master: &Master, noise: Option<&Injected>) -> Vec<u8> {
    let own = [("weights", &master.weights), ("m", &master.m), ("v", &master.v)];
    let kept = noise.into_iter().flat_map(Injected::past).map(|(version, weights)| (past(*version), weights));
    let mut tensors = Vec::new();
    for (part, set) in own.map(|(part, set)| (part.to_owned(), set)).into_iter().chain(kept) {
        for (i, param) in set.params().iter().enumerate() {
            let bytes = bytemuck::cast_slice(set.tensor(i));
            let view = TensorView::new(Dtype::F32, param.shape.clone(), bytes).expect("shape and bytes agree");
            tensors.push((format!("{part}.{}", param.name), view));
        }
    }
    safetensors::serialize(tensors, None).expect("names are unique")
}

/// What a run goes on with beside its weights; nothing of it where there was no checkpoint.
#[derive(Default)]
pub(super) struct Restored {
    /// What was under way.
    pub in_flight: Vec<Unfinished>,
    pub in_force: Option<InForce>,
    pub kept: Option<serde_json::Value>,
}

/// Brings `master` to the newest whole checkpoint of a run; leaves it alone when there is none.
pub(super) fn restore(
    out: &Path,
    origin: &Origin,
    master: &mut Master,
    noise: Option<&mut Injected>,
) -> Result<Restored, SaveError> {
    let Some((dir, seal)) = newest(out)? else { return Ok(Restored::default()) };
    for (role, before, now) in
        [("student", &seal.student, &origin.student), ("teacher", &seal.teacher, &origin.teacher)]
    {
        if before != now {
            return Err(SaveError::OtherWeights { path: dir, role, before: before.clone(), now: now.clone() });
        }
    }
    if seal.teachers != origin.teachers {
        let [before, now] = [&seal.teachers, &origin.teachers].map(|all| {
            let all: Vec<String> = all.iter().map(|(name, hash)| format!("{name} {hash}")).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        });
        return Err(SaveError::OtherWeights { path: dir, role: "task.teachers", before, now });
    }
    if seal.reference != origin.reference {
        let [before, now] =
            [&seal.reference, &origin.reference].map(|x| x.clone().unwrap_or_else(|| "none".to_owned()));
        return Err(SaveError::OtherWeights { path: dir, role: "reference", before, now });
    }
    if let Some(before) = seal.recipe.filter(|before| *before != origin.recipe_hash) {
        return Err(SaveError::OtherRecipe { path: dir, before, now: origin.recipe_hash.clone() });
    }
    let before = seal.device.unwrap_or_else(|| "cpu".to_owned());
    if before != origin.device_kind {
        return Err(SaveError::OtherDevice { path: dir, before, now: origin.device_kind.clone() });
    }
    // Checkpoints from before prompts were hashed lack it.
    if let (Some(before), Some(now)) = (&seal.prompts, &origin.prompts)
        && before != now
    {
        return Err(SaveError::OtherPrompts { path: dir, before: before.clone(), now: now.clone() });
    }
    let mut unfinished = Vec::new();
    if seal.in_flight_blake3.is_some() {
        let path = dir.join(IN_FLIGHT);
        let text = fs::read_to_string(&path).map_err(|source| SaveError::Io { path: path.clone(), source })?;
        unfinished = in_flight::decode(&text).map_err(|what| SaveError::InFlight { path, what })?;
    }
    let path = dir.join(STATE);
    let file = MappedFile::open(&path).map_err(|source| SaveError::Io { path: path.clone(), source })?;
    let other = |what: String| SaveError::Other { path: path.clone(), what };
    let state = SafeTensors::deserialize(file.bytes()).map_err(|e| other(e.to_string()))?;
    let read = |part: &str, set: &mut Gradients| -> Result<(), SaveError> {
        for i in 0..set.params().len() {
            let param = set.params()[i].clone();
            let name = format!("{part}.{}", param.name);
            let view = state.tensor(&name).map_err(|e| other(format!("{name}: {e}")))?;
            if view.shape() != param.shape || view.dtype() != Dtype::F32 {
                return Err(other(format!("{name} has shape {:?}, not {:?}", view.shape(), param.shape)));
            }
            let to: &mut [u8] = bytemuck::cast_slice_mut(set.tensor_mut(i));
            to.copy_from_slice(view.data());
        }
        Ok(())
    };
    read("weights", &mut master.weights)?;
    read("m", &mut master.m)?;
    read("v", &mut master.v)?;
    master.updates = seal.update;
    if let Some(noise) = noise {
        let mut kept = Vec::new();
        for version in noise.past_versions(seal.update) {
            let mut weights = master.weights.clone();
            read(&past(version), &mut weights)?;
            kept.push((version, weights));
        }
        noise.restore(seal.noise_sigma, kept);
    }
    Ok(Restored { in_flight: unfinished, in_force: seal.in_force, kept: seal.guard })
}

/// The newest checkpoint whose seal is there and fits its state; torn and damaged ones are passed over.
fn newest(out: &Path) -> Result<Option<(PathBuf, Seal)>, SaveError> {
    let root = out.join("checkpoints");
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SaveError::Io { path: root, source }),
    };
    let mut found: Vec<(PathBuf, Seal)> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| SaveError::Io { path: root.clone(), source })?;
        let dir = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            // A checkpoint that an interrupted run was still writing: it never got its name. If it cannot be taken
            // away it is in nobody's way.
            drop(fs::remove_dir_all(&dir));
            continue;
        }
        if let Some(seal) = read_seal(&dir) {
            found.push((dir, seal));
        }
    }
    found.sort_by_key(|(_, seal)| std::cmp::Reverse(seal.update));
    Ok(found.into_iter().find(|(dir, seal)| is_whole(dir, seal)))
}

/// The seal of a checkpoint, if it has a readable one.
fn read_seal(dir: &Path) -> Option<Seal> {
    serde_json::from_slice(&fs::read(dir.join(SEAL)).ok()?).ok()
}

/// Whether everything is as it was sealed.
fn is_whole(dir: &Path, seal: &Seal) -> bool {
    let is = |name: &str, hash: &str| {
        MappedFile::open(&dir.join(name)).is_ok_and(|file| blake3::hash(file.bytes()).to_hex().to_string() == hash)
    };
    let under_way = seal.in_flight_blake3.as_ref().is_none_or(|hash| is(IN_FLIGHT, hash));
    seal.format == 1 && is(STATE, &seal.state_blake3) && under_way
}

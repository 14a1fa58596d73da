//! The model hash while the weights are being loaded: it reads the whole model, and nobody needs it before a result is written.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::Checkpoint;

/// A model hash that a thread of its own computes.
#[derive(Debug)]
pub struct HashInBackground {
    hash: OnceLock<String>,
    thread: Mutex<Option<JoinHandle<String>>>,
}

impl HashInBackground {
    /// Starts to hash the folder.
    #[must_use]
    pub fn start(checkpoint: Arc<Checkpoint>) -> HashInBackground {
        let thread = std::thread::Builder::new().name("leeway-hash".into()).spawn({
            let checkpoint = Arc::clone(&checkpoint);
            move || checkpoint.model_hash()
        });
        match thread {
            Ok(thread) => HashInBackground { hash: OnceLock::new(), thread: Mutex::new(Some(thread)) },
            // A system that has no thread to spare waits for the hash.
            Err(_) => HashInBackground { hash: OnceLock::from(checkpoint.model_hash()), thread: Mutex::new(None) },
        }
    }

    /// The hash, as [`Checkpoint::model_hash`] has it; waits until it is there.
    ///
    /// # Panics
    /// When hashing panicked.
    #[must_use]
    pub fn get(&self) -> &str {
        self.hash.get_or_init(|| {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            let thread = thread.expect("the thread is there until its hash is");
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

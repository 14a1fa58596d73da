//! Steps on the CPU.

use std::sync::Arc;

use kv::KvCache;
use ptx::Cpu;
use ptx::kv_tile::{KvCounts, Span};
use ptx::ops::linear::{self, Job};
use ptx::ops::log_softmax;
use ptx::ops::sample::{self, Drawn, RowDraw};

use super::{Draw, Drew, Feed, LOGIT_ROWS, Top};
use crate::model::{Batch, Model, Workspace, buffer, forward};
use crate::noise::LogitNoise;
use crate::versions::Versions;

/// Weights and buffers.
#[derive(Debug)]
pub(super) struct Host {
    pub cpu: Arc<Cpu>,
    pub versions: Versions<Arc<Model>>,
    /// The weights version of the last step: whose head its logits take.
    ran: u64,
    ids: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span<'static>>, // empty between steps: only its allocation is kept
    pub workspace: Workspace,
    selected: Vec<f32>,
    pub logits: Vec<f32>,
    /// What draws add to logits.
    pub noise: Option<LogitNoise>,
    draws: Draws,
}

/// The draws of one block of logits.
#[derive(Debug, Default)]
struct Draws {
    /// Rows of the step whose logits the block has.
    rows: Vec<usize>,
    /// The first draw of each of them.
    first: Vec<RowDraw>,
    /// Its prefix, for noise.
    prefixes: Vec<u64>,
    drawn: Vec<Drawn>,
    /// Row of the block that each draw is from.
    of: Vec<usize>,
    /// The likeliest ids of a row, their logprobs as drawn and at temperature 1.
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    raw: Vec<f32>,
}

impl Host {
    pub fn new(cpu: Arc<Cpu>, model: Model) -> Host {
        Host::sharing(cpu, Arc::new(model))
    }

    pub fn sharing(cpu: Arc<Cpu>, model: Arc<Model>) -> Host {
        Host {
            cpu,
            ran: model.version(),
            versions: Versions::new(model),
            ids: Vec::new(),
            positions: Vec::new(),
            spans: Vec::new(),
            workspace: Workspace::default(),
            selected: Vec::new(),
            logits: Vec::new(),
            noise: None,
            draws: Draws::default(),
        }
    }

    pub fn step<'a>(&mut self, kv: &mut KvCache, version: u64, feeds: impl Iterator<Item = Feed<'a>>) {
        self.versions.assert_usable();
        self.ran = version;
        let Host { cpu, versions, ids, positions, spans, workspace, .. } = self;
        let model = versions.get(version).expect("the version is retained");
        ids.clear();
        positions.clear();
        let mut batch_spans: Vec<Span<'a>> = std::mem::take(spans);
        for feed in feeds {
            batch_spans.push(feed.span(ids.len()));
            ids.extend_from_slice(feed.ids);
            positions.extend(feed.positions());
        }
        let batch = Batch { ids, positions, spans: &batch_spans };
        forward(cpu, model, kv, batch, workspace, None);
        *spans = super::emptied(batch_spans);
    }

    pub fn logits(&mut self, rows: impl ExactSizeIterator<Item = usize>) {
        let model = self.versions.get(self.ran).expect("logits are asked for before the next update");
        let (hidden, vocab, count) = (model.config.hidden, model.config.vocab, rows.len());
        assert!(count <= LOGIT_ROWS, "logits of {count} rows at once; at most {LOGIT_ROWS}");
        buffer::size(&mut self.selected, count * hidden);
        buffer::size(&mut self.logits, count * vocab);
        for (to, row) in self.selected.chunks_exact_mut(hidden).zip(rows) {
            to.copy_from_slice(&self.workspace.hidden[row * hidden..(row + 1) * hidden]);
        }
        let job = Job { w: model.head(), bias: None, y: &mut self.logits };
        linear::forward(&self.cpu, count, &self.selected, &mut [job]);
    }

    /// One block of [`super::Engine::gather`].
    pub fn gather(&mut self, valid: usize, rows: &[usize], inv_temps: &[f32], targets: &[u32], out: &mut [f32]) {
        self.logits(rows.iter().copied());
        let vocab = self.logits.len() / rows.len().max(1);
        let mut first = 0;
        while first < rows.len() {
            let inv_temp = inv_temps[first];
            let run = inv_temps[first..].iter().take_while(|&&other| other == inv_temp).count();
            let (logits, all) = (&self.logits[first * vocab..(first + run) * vocab], first..first + run);
            let (targets, out) = (&targets[all.clone()], &mut out[all]);
            match log_softmax::gather(&self.cpu, run, vocab, valid, inv_temp, logits, targets, out) {
                Ok(()) => first += run,
                Err(bad) => {
                    // Those before it are computed again, and those after it by themselves.
                    let row = bad.row();
                    log_softmax::gather(
                        &self.cpu,
                        row,
                        vocab,
                        valid,
                        inv_temp,
                        &logits[..row * vocab],
                        &targets[..row],
                        &mut out[..row],
                    )
                    .expect("the rows before the first bad one");
                    out[row] = f32::NAN;
                    first += row + 1;
                }
            }
        }
    }

    /// One block of [`super::Engine::draw`].
    pub fn draw(&mut self, valid: usize, draws: &[Draw], out: &mut Vec<Drew>, tops: &mut Vec<Top>) -> usize {
        let mut own = std::mem::take(&mut self.draws);
        let Draws { rows, first, prefixes, drawn, of, .. } = &mut own;
        rows.clear();
        first.clear();
        prefixes.clear();
        drawn.clear();
        of.clear();
        for draw in draws {
            if rows.last() != Some(&draw.row) {
                if rows.len() == LOGIT_ROWS {
                    break;
                }
                rows.push(draw.row);
                first.push(draw.how);
                prefixes.push(draw.prefix);
            }
            of.push(rows.len() - 1);
        }
        self.logits(rows.iter().copied());
        drawn.resize(rows.len(), None);
        let vocab = self.logits.len() / rows.len().max(1);
        if let Some(noise) = self.noise {
            for ((row, how), &prefix) in self.logits.chunks_exact_mut(vocab).zip(&*first).zip(&*prefixes) {
                noise.add(prefix, 0, how.params.inv_temp(), &mut row[..valid]);
            }
        }
        sample::draw_rows(&self.cpu, vocab, valid, &self.logits, first, drawn);
        out.clear();
        for (draw, &row) in draws.iter().zip(&*of) {
            // Samples that were just forked from one prompt share its row.
            out.push(match drawn[row].take() {
                Some(first) => first,
                None => {
                    let logits = &self.logits[row * vocab..][..valid];
                    sample::draw(self.cpu.isa(), &draw.how.params, logits, draw.how.uniform)
                }
            });
        }
        let count = of.len();
        tops.clear();
        for (at, (draw, drew)) in draws.iter().zip(&*out).enumerate().filter(|(_, (draw, _))| draw.top > 0) {
            let logits = &self.logits[own.of[at] * vocab..][..valid];
            self.top(&mut own, logits, draw, drew, tops);
        }
        self.draws = own;
        count
    }

    /// The likeliest ids of a row that was drawn from.
    fn top(&self, own: &mut Draws, logits: &[f32], draw: &Draw, drew: &Drew, tops: &mut Vec<Top>) {
        let Ok(drawn) = drew else {
            tops.resize(tops.len() + draw.top, Top::NONE);
            return;
        };
        let (isa, params, k) = (self.cpu.isa(), &draw.how.params, draw.top);
        let Draws { ids, logprobs, raw, .. } = own;
        ids.resize(k, 0);
        logprobs.resize(k, 0.0);
        raw.resize(k, 0.0);
        log_softmax::top_k_of_row(isa, logits, params.inv_temp(), drawn.normalizers, ids, logprobs, raw);
        sample::processed(isa, params, logits, ids, logprobs).expect("the draw found these logits finite");
        let each = ids.iter().zip(&*logprobs).zip(&*raw);
        tops.extend(each.map(|((&id, &logprob), &logprob_raw)| Top { id, logprob, logprob_raw }));
    }

    pub fn counts(&self) -> &[KvCounts] {
        &self.workspace.counts
    }

    pub fn clear_counts(&mut self) {
        self.workspace.counts.fill(KvCounts::default());
    }

    #[cfg(test)]
    pub fn buffer_bytes(&mut self) -> (usize, usize) {
        let floats = self.selected.capacity() + self.logits.capacity();
        (self.workspace.bytes(), floats * size_of::<f32>())
    }
}

//! Logits of some rows on the device, and what is taken from them there: tokens and logprobs. Equal logits give the CPU's
//! tokens and logprobs, so which of the two draws shows in no bit.

use ptx::cuda::{CudaError, Gpu, Mem, View};
use ptx::ops::linear::cuda::{self as linear, Epilogue};
use ptx::ops::log_softmax::cuda::{self as log_softmax, Block, Lses};
use ptx::ops::sample::cuda::{self as sample, Drawn};
use ptx::ops::{rmsnorm, select};

use super::weights::DeviceModel;
use super::workspace::{InputLens, Inputs};
use crate::config::ModelConfig;
use crate::engine::{Draw, Drew, LOGIT_ROWS, Top};
use crate::recipe::Activations;

/// Words of a draw's parameters, and of its result.
const DRAW: usize = size_of::<sample::Draw>() / size_of::<u32>();
const DRAWN: usize = size_of::<Drawn>() / size_of::<u32>();
/// Of the likeliest ids so many a row have room from the start; where more are asked for, room is made once.
const TOPS: usize = 32;
/// Words of one of them: id and two logprobs.
const TOP: usize = 3;

/// Words that a block is told, in the longest case: rows' inverse temperatures, uniforms and draws, and offsets.
fn words() -> usize {
    LOGIT_ROWS * (2 + DRAW) + LOGIT_ROWS + 1
}

/// Words of a block's results with `tops` of the likeliest ids.
fn results(tops: usize) -> usize {
    LOGIT_ROWS * DRAWN + tops * TOP
}

/// Buffers of one block of logits.
#[derive(Debug)]
pub(super) struct Sampling {
    vocab: usize,
    valid: usize,
    activations: Activations,
    /// Rows whose logits are wanted, then 1 / temperature, targets, offsets, uniforms or draws: 32-bit words.
    words: Mem<u32>,
    /// The residual stream of those rows.
    selected: Mem<f32>,
    inputs: Inputs,
    logits: Mem<f32>,
    /// Rows that it holds.
    count: usize,
    partials: Mem<f32>,
    /// What draws leave, then the likeliest ids and their logprobs, read back at once: 32-bit words.
    results: Mem<u32>,
    tokens: Mem<u32>,
    logprobs: Mem<f32>,
    status: Mem<u32>,
    /// For truncated draws, and for the likeliest ids.
    workspace: Mem<u64>,
    /// Ids of lists and their logprobs.
    lists: Option<(Mem<u32>, Mem<f32>)>,
    host: Host,
}

/// The same on the host.
#[derive(Debug, Default)]
struct Host {
    rows: Vec<u32>,
    words: Vec<u32>,
    offsets: Vec<u32>,
    draws: Vec<sample::Draw>,
    results: Vec<u32>,
    status: Vec<u32>,
    logits: Vec<f32>,
}

impl Sampling {
    pub fn new(gpu: &Gpu, c: &ModelConfig, activations: Activations, valid: usize) -> Result<Sampling, CudaError> {
        let rows = LOGIT_ROWS;
        Ok(Sampling {
            vocab: c.vocab,
            valid,
            activations,
            words: gpu.alloc(words())?,
            selected: gpu.alloc(rows * c.hidden)?,
            inputs: Inputs::new(gpu, input_lens(c, activations))?,
            logits: gpu.alloc(rows * c.vocab)?,
            count: 0,
            partials: gpu.alloc(log_softmax::partials_len(rows, valid))?,
            results: gpu.alloc(results(rows * TOPS))?,
            tokens: gpu.alloc(rows)?,
            logprobs: gpu.alloc(rows)?,
            status: gpu.alloc(rows)?,
            workspace: gpu.alloc(log_softmax::workspace_len(rows, valid))?,
            lists: None,
            host: Host::default(),
        })
    }

    /// Bytes of each allocation of [`Sampling::new`].
    pub fn sizes(c: &ModelConfig, activations: Activations, valid: usize) -> Vec<usize> {
        let rows = LOGIT_ROWS;
        let partials = log_softmax::partials_len(rows, valid);
        let lens = [words(), rows * c.hidden, rows * c.vocab, partials, results(rows * TOPS), rows, rows, rows];
        let workspace = log_softmax::workspace_len(rows, valid) * size_of::<u64>();
        let bytes = lens.into_iter().map(|len| len * size_of::<u32>());
        bytes.chain(input_lens(c, activations).sizes()).chain([workspace]).collect()
    }

    /// The logits of some rows of the residual stream `x`: last norm and head. The norm and the product of a row do not
    /// depend on the others.
    pub fn logits(
        &mut self,
        gpu: &Gpu,
        c: &ModelConfig,
        model: &DeviceModel,
        x: View<f32>,
        rows: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), CudaError> {
        let (count, hidden) = (rows.len(), c.hidden);
        assert!(count <= LOGIT_ROWS, "logits of {count} rows at once; at most {LOGIT_ROWS}");
        self.count = count;
        let list = &mut self.host.rows;
        list.clear();
        list.extend(rows.map(|row| {
            assert!((row + 1) * hidden <= x.len(), "row {row} is not of the last step");
            u32::try_from(row).expect("rows are few")
        }));
        if count == 0 {
            return Ok(());
        }
        // Decoding wants all rows in order, which need no copy.
        let in_order = list.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let from = if in_order {
            x.part(list[0] as usize * hidden, count * hidden)
        } else {
            gpu.write(self.words.view(), list)?;
            select::cuda::rows(gpu, count, hidden, x, self.words.view(), self.selected.view())?;
            self.selected.view().part(0, count * hidden)
        };
        let (codes, activations) = (self.activations == Activations::E4m3, self.activations);
        let out = self.inputs.out(count, hidden, codes);
        rmsnorm::cuda::forward(gpu, count, hidden, from, model.norm.view(), c.eps, out)?;
        self.inputs.round(gpu, count, hidden, codes, false)?;
        let input = self.inputs.input(activations, count, hidden);
        linear::forward(gpu, count, input, model.head(), self.logits.view(), self.vocab, Epilogue::Write)
    }

    /// `count` rows of the last logits from `first` on, their inverse temperatures on the device.
    fn block(&self, first: usize, count: usize, inv_temps: View<f32>) -> Block {
        let Sampling { vocab, valid, .. } = *self;
        assert!(first + count <= self.count, "rows {first}+{count} of {}", self.count);
        let logits = self.logits.view().part(first * vocab, count * vocab);
        Block { rows: count, vocab, valid, logits, inv_temps, partials: self.partials.view() }
    }

    /// Writes lists of words behind each other and returns where each is.
    fn write<const N: usize>(
        &mut self,
        gpu: &Gpu,
        lists: [&mut dyn Iterator<Item = u32>; N],
    ) -> Result<[View<u32>; N], CudaError> {
        let words = &mut self.host.words;
        words.clear();
        let ends = lists.map(|list| {
            let first = words.len();
            words.extend(list);
            (first, words.len() - first)
        });
        gpu.write(self.words.view(), words)?;
        Ok(ends.map(|(first, len)| self.words.view().part(first, len)))
    }

    /// ln p of a target of each row of the last logits; NaN where the row is no distribution.
    pub fn gather(&mut self, gpu: &Gpu, inv_temps: &[f32], targets: &[u32], out: &mut [f32]) -> Result<(), CudaError> {
        let count = self.count;
        if count == 0 {
            return Ok(());
        }
        assert!(targets.iter().all(|&target| (target as usize) < self.valid), "a target is no real id");
        let [temps, targets] =
            self.write(gpu, [&mut inv_temps.iter().map(|x| x.to_bits()), &mut targets.iter().copied()])?;
        let block = self.block(0, count, temps.bytes().of());
        log_softmax::gather(gpu, &block, targets, self.logprobs.view(), self.status.view())?;
        let status = &mut self.host.status;
        status.resize(count, 0);
        gpu.read(self.logprobs.view(), &mut out[..count])?;
        gpu.read(self.status.view(), status)?;
        for (out, _) in out.iter_mut().zip(status).filter(|(_, status)| **status != 0) {
            *out = f32::NAN;
        }
        Ok(())
    }

    /// ln p of lists of ids of rows `first ..` of the last logits.
    pub fn gather_lists(
        &mut self,
        gpu: &Gpu,
        first: usize,
        inv_temps: &[f32],
        offsets: &[usize],
        ids: &[u32],
        out: &mut [f32],
    ) -> Result<(), CudaError> {
        if ids.is_empty() {
            return Ok(());
        }
        assert!(ids.iter().all(|&id| (id as usize) < self.valid), "an id is not real");
        if self.lists.as_ref().is_none_or(|(mem, _)| mem.len() < ids.len()) {
            let len = ids.len().next_power_of_two();
            self.lists = Some((gpu.alloc(len)?, gpu.alloc(len)?));
        }
        let word = |&offset: &usize| u32::try_from(offset).expect("fewer than 2^32 ids");
        let [temps, offsets] =
            self.write(gpu, [&mut inv_temps.iter().map(|x| x.to_bits()), &mut offsets.iter().map(word)])?;
        let block = self.block(first, inv_temps.len(), temps.bytes().of());
        let (on_ids, on_logprobs) = self.lists.as_ref().expect("just made");
        gpu.write(on_ids.view(), ids)?;
        let (listed, status) = (on_ids.view().part(0, ids.len()), self.status.view());
        log_softmax::gather_many(gpu, &block, offsets, listed, on_logprobs.view(), status)?;
        gpu.read(on_logprobs.view(), out)
    }

    /// Draws from each row of the last logits, and finds its likeliest ids.
    pub fn draw(
        &mut self,
        gpu: &Gpu,
        draws: &[Draw],
        drew: &mut Vec<Drew>,
        tops: &mut Vec<Top>,
    ) -> Result<(), CudaError> {
        drew.clear();
        tops.clear();
        if draws.is_empty() {
            return Ok(());
        }
        let (count, valid) = (draws.len(), self.valid);
        let mut offsets = std::mem::take(&mut self.host.offsets);
        let mut hows = std::mem::take(&mut self.host.draws);
        offsets.clear();
        hows.clear();
        let mut found = 0;
        for draw in draws {
            offsets.push(u32::try_from(found).expect("fewer than 2^32 ids"));
            found += draw.top;
            hows.push(sample::Draw::of(&draw.how.params).expect("the request was checked"));
        }
        offsets.push(u32::try_from(found).expect("fewer than 2^32 ids"));
        let told = self.write(
            gpu,
            [
                &mut draws.iter().map(|draw| draw.how.params.inv_temp().to_bits()),
                &mut draws.iter().map(|draw| draw.how.uniform.to_bits()),
                &mut bytemuck::cast_slice::<_, u32>(&hows).iter().copied(),
                &mut offsets.iter().copied(),
            ],
        );
        (self.host.offsets, self.host.draws) = (offsets, hows);
        let [temps, uniforms, hows, offsets] = told?;
        if self.results.len() < results(found) {
            self.results = gpu.alloc(results(found.next_power_of_two()))?;
        }
        let of_draws = count * DRAWN;
        let part = |at: usize| self.results.view().part(of_draws + at * found, found);
        let drawn: View<Drawn> = self.results.view().part(0, of_draws).bytes().of();

        let block = self.block(0, count, temps.bytes().of());
        let truncated = draws.iter().any(|draw| draw.how.params.temperature != 0.0 && draw.how.params.truncates(valid));
        let (hows, uniforms) = (hows.bytes().of(), uniforms.bytes().of());
        let (workspace, tokens) = (self.workspace.view(), self.tokens.view());
        sample::draw_rows(gpu, &block, hows, uniforms, truncated, workspace, drawn, tokens)?;
        if found > 0 {
            let (logprobs, raw) = (part(1).bytes().of(), part(2).bytes().of());
            log_softmax::top_k(gpu, &block, offsets, Lses::Drawn(drawn), workspace, part(0), logprobs, raw)?;
        }

        let all = &mut self.host.results;
        all.resize(of_draws + found * TOP, 0);
        gpu.read(self.results.view(), all)?;
        let (drawn, lists) = self.host.results.split_at(of_draws);
        let drawn: &[Drawn] = bytemuck::cast_slice(drawn);
        for (row, (drawn, draw)) in drawn.iter().zip(draws).enumerate() {
            drew.push(drawn.result(gpu, &block, row, &draw.how.params)?);
        }
        let (ids, logprobs) = lists.split_at(found);
        let (logprobs, raw) = logprobs.split_at(found);
        tops.extend(ids.iter().zip(logprobs).zip(raw).map(|((&id, &logprob), &raw)| Top {
            id,
            logprob: f32::from_bits(logprob),
            logprob_raw: f32::from_bits(raw),
        }));
        Ok(())
    }

    /// The last logits, all columns of the first `count` rows, copied to the host.
    pub fn download(&mut self, gpu: &Gpu, count: usize) -> Result<&[f32], CudaError> {
        assert!(count <= self.count, "{count} rows of {}", self.count);
        self.host.logits.resize(count * self.vocab, 0.0);
        gpu.read(self.logits.view(), &mut self.host.logits)?;
        Ok(&self.host.logits)
    }

    /// What [`Sampling::download`] gave last.
    pub fn downloaded(&self) -> &[f32] {
        &self.host.logits
    }
}

/// Room for the input of the head.
fn input_lens(c: &ModelConfig, activations: Activations) -> InputLens {
    InputLens::new(LOGIT_ROWS, c.hidden, activations == Activations::E4m3)
}

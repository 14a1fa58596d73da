//! How row and element ops are cut into tasks: by shape alone, never by the number of threads.

use crate::Cpu;
use crate::parallel::Parts;

/// Elements below which waking other threads costs more than it saves.
const SHARE: usize = 32 * 1024;
/// Elements of one task: 64 KiB a buffer, so that a task's buffers stay in the second-level cache.
pub(crate) const TASK: usize = 16 * 1024;

/// Whether `elements` are enough to share between threads.
pub(crate) fn worth_sharing(elements: usize) -> bool {
    elements >= SHARE
}

/// Rows of `width` elements that one task takes.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Runs `task(i, parts)` for `i` in `0..tasks`, where `parts[b]` is the `i`-th piece of `per` elements of buffer `b`
/// = `(slice, per)`; the last pieces may be shorter or empty.
pub(crate) fn split<const N: usize>(
    cpu: &Cpu,
    share: bool,
    tasks: usize,
    buffers: [(&mut [f32], usize); N],
    task: impl Fn(usize, [&mut [f32]; N]) + Sync,
) {
    let buffers = buffers.map(|(slice, per)| {
        assert!(slice.len() <= tasks * per, "{tasks} tasks of {per} do not cover {} elements", slice.len());
        (slice.len(), per, Parts::new(slice))
    });
    cpu.for_each_if(share, tasks, |i| {
        let mine = std::array::from_fn(|b| {
            let (len, per, parts) = &buffers[b];
            let at = (i * per).min(*len);
            // SAFETY: task `i` alone takes the elements from `i * per` up to `(i + 1) * per` of each buffer.
            unsafe { parts.range(at, (*per).min(len - at)) }
        });
        task(i, mine);
    });
}

/// [`split`] of buffers of equal length, element by element, in tasks of [`TASK`] elements. `task` is told where its
/// piece begins.
pub(crate) fn split_elements<const N: usize>(
    cpu: &Cpu,
    buffers: [&mut [f32]; N],
    task: impl Fn(usize, [&mut [f32]; N]) + Sync,
) {
    let len = buffers.iter().map(|b| b.len()).max().unwrap_or(0);
    split(cpu, worth_sharing(len), len.div_ceil(TASK), buffers.map(|b| (b, TASK)), |i, parts| task(i * TASK, parts));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_buffer_once() {
        for threads in [1, 3] {
            let cpu = Cpu::new(threads);
            let (mut a, mut b) = (vec![0.0_f32; 103], vec![0.0_f32; 11]);
            split(&cpu, true, 11, [(&mut a, 10), (&mut b, 1)], |i, [a, b]| {
                assert_eq!((a.len(), b.len()), (if i == 10 { 3 } else { 10 }, 1));
                a.iter_mut().chain(b).for_each(|x| *x += 1.0);
            });
            assert!(a.iter().chain(&b).all(|&x| x == 1.0));
        }
    }

    #[test]
    #[should_panic(expected = "do not cover")]
    fn a_buffer_that_tasks_do_not_cover_is_refused() {
        split(&Cpu::new(1), false, 2, [(&mut [0.0; 5], 2)], |_, _| ());
    }
}

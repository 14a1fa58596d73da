//! Basic blocks, and for each the block where its paths meet again: the immediate post-dominator.
//!
//! A thread that ends is waited for by nobody. So an edge to a block that only ends the thread does not count where there
//! is another way on: `if (bad) return;` in the middle of a region leaves the region's end a meeting point.

use crate::decode::{Decoded, Extra};

/// A basic block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its instructions.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) next: Vec<usize>,
    /// Where its paths meet again.
    pub(crate) join: Option<usize>,
}

/// The blocks of an entry, in the order of the text.
pub(crate) fn blocks(d: &Decoded) -> Vec<Block> {
    let n = d.insts.len();
    let mut leads = vec![false; n + 1];
    leads[0] = true;
    for (i, inst) in d.insts.iter().enumerate() {
        match inst.extra {
            Extra::Branch { target, .. } => {
                leads[d.starts[target]] = true;
                leads[i + 1] = true;
            }
            Extra::Exit => leads[i + 1] = true,
            _ => {}
        }
    }
    let starts: Vec<usize> = (0..n).filter(|&i| leads[i]).collect();
    let of = |inst: usize| starts.partition_point(|&s| s <= inst) - 1;
    let mut blocks: Vec<Block> = starts
        .iter()
        .enumerate()
        .map(|(b, &start)| {
            let end = starts.get(b + 1).copied().unwrap_or(n);
            let last = &d.insts[end - 1];
            let mut next = Vec::new();
            let ends = matches!(last.extra, Extra::Exit) && last.guard.is_none();
            let leaves = matches!(last.extra, Extra::Branch { .. }) && last.guard.is_none();
            if !ends && !leaves && end < n {
                next.push(b + 1);
            }
            if let Extra::Branch { target, .. } = last.extra {
                let to = of(d.starts[target]);
                if !next.contains(&to) {
                    next.push(to);
                }
            }
            Block { start, end, next, join: None }
        })
        .collect();
    let only_ends: Vec<bool> = blocks
        .iter()
        .map(|b| matches!(d.insts[b.start].extra, Extra::Exit) && d.insts[b.start].guard.is_none())
        .collect();
    for (block, join) in joins(&blocks, &only_ends).into_iter().enumerate() {
        blocks[block].join = join;
    }
    blocks
}

/// Blocks from which the exit is reached, in post-order of the reversed graph.
fn from_exit(next: &[Vec<usize>]) -> Vec<usize> {
    let exit = next.len();
    let mut previous = vec![Vec::new(); exit + 1];
    for (b, next) in next.iter().enumerate() {
        for &t in next {
            previous[t].push(b);
        }
    }
    let (mut order, mut stack) = (Vec::new(), vec![(exit, 0)]);
    let mut seen = vec![false; exit + 1];
    seen[exit] = true;
    while let Some((b, edge)) = stack.last_mut() {
        match previous[*b].get(*edge) {
            Some(&p) => {
                *edge += 1;
                if !std::mem::replace(&mut seen[p], true) {
                    stack.push((p, 0));
                }
            }
            None => {
                order.push(*b);
                stack.pop();
            }
        }
    }
    order
}

/// Immediate post-dominators, by the iteration of Cooper, Harvey and Kennedy on the reversed graph.
fn joins(blocks: &[Block], only_ends: &[bool]) -> Vec<Option<usize>> {
    let n = blocks.len();
    let exit = n;
    let mut next: Vec<Vec<usize>> = blocks
        .iter()
        .map(|b| {
            let on: Vec<usize> = b.next.iter().copied().filter(|&t| !only_ends[t]).collect();
            match (on.is_empty(), b.next.is_empty()) {
                (false, _) => on,
                (true, false) => b.next.clone(),
                (true, true) => vec![exit],
            }
        })
        .collect();
    let mut order = from_exit(&next);
    // A loop may be left to an end alone: that way on counts after all.
    loop {
        let mut reached = vec![false; n + 1];
        order.iter().for_each(|&b| reached[b] = true);
        let cut = |b: &usize| !reached[*b] && next[*b].len() < blocks[*b].next.len();
        let Some(b) = (0..n).rev().find(cut) else { break };
        next[b].clone_from(&blocks[b].next);
        order = from_exit(&next);
    }
    let mut rank = vec![usize::MAX; n + 1];
    for (i, &b) in order.iter().enumerate() {
        rank[b] = i;
    }
    let mut dominator = vec![None; n + 1];
    dominator[exit] = Some(exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev().filter(|&&b| b != exit) {
            let mut new = None;
            for &t in next[b].iter().filter(|&&t| dominator[t].is_some()) {
                new = Some(match new {
                    None => t,
                    Some(other) => meet(&dominator, &rank, t, other),
                });
            }
            if new.is_some() && dominator[b] != new {
                dominator[b] = new;
                changed = true;
            }
        }
    }
    (0..n).map(|b| dominator[b].filter(|&j| j != exit)).collect()
}

fn meet(dominator: &[Option<usize>], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] < rank[b] {
            a = dominator[a].expect("ranked blocks have one");
        }
        while rank[b] < rank[a] {
            b = dominator[b].expect("ranked blocks have one");
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(next: &[&[usize]]) -> Vec<Block> {
        next.iter().map(|n| Block { next: n.to_vec(), ..Block::default() }).collect()
    }

    #[test]
    fn diamonds_and_loops_meet_after_themselves() {
        // 0 -> 1 | 2 -> 3; 3 -> 3 | 4
        let g = graph(&[&[1, 2], &[3], &[3], &[3, 4], &[]]);
        assert_eq!(joins(&g, &[false; 5]), [Some(3), Some(3), Some(3), Some(4), None]);
    }

    #[test]
    fn an_early_end_does_not_move_the_meeting_point() {
        // 0 -> 1 | 3; 1 -> 2 | 4 (ends); 2 -> 3; 3 -> 4
        let g = graph(&[&[1, 3], &[2, 4], &[3], &[4], &[]]);
        let ends = [false, false, false, false, true];
        assert_eq!(joins(&g, &ends), [Some(3), Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn a_loop_without_end_meets_nowhere() {
        let g = graph(&[&[1, 2], &[1], &[]]);
        assert_eq!(joins(&g, &[false; 3]), [Some(2), None, None]);
    }

    #[test]
    fn a_loop_that_only_an_end_leaves_does_not_hide_what_meets_before_it() {
        // 0 -> 1 | 2; 1 -> 2; 2 -> 3 | 4 (ends); 3 -> 3 | 4
        let g = graph(&[&[1, 2], &[2], &[3, 4], &[3, 4], &[]]);
        let ends = [false, false, false, false, true];
        assert_eq!(joins(&g, &ends), [Some(2), Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn nested_loops() {
        // 0 -> 1; 1 -> 2; 2 -> 2 | 3; 3 -> 1 | 4
        let g = graph(&[&[1], &[2], &[2, 3], &[1, 4], &[]]);
        assert_eq!(joins(&g, &[false; 5]), [Some(1), Some(2), Some(3), Some(4), None]);
    }
}

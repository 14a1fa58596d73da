//! Which units to quantise: by cost per byte saved, ascending.
//!
//! Costs are taken as additive. Both choices are greedy and at most one item from the optimum: a choice that could take
//! part of an item would stop exactly where the greedy one does, and it bounds every choice of whole items.

/// A unit that may be taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// What taking it costs: D in nats per token, not negative.
    pub cost: f64,
    /// What taking it saves; an item that saves nothing is never taken.
    pub bytes: u64,
}

/// No choice saves as much as was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all units together save {best} bytes, and {want} were asked for")]
pub struct Unreachable {
    /// What was asked for.
    pub want: u64,
    /// What all items save together.
    pub best: u64,
}

/// Saves many bytes at a total cost of at most `budget`; by item, whether it is taken. Items are looked at by cost per
/// byte, ascending, those without cost first, and taken when they still fit. What is saved falls short of the optimum
/// by less than one item.
///
/// # Panics
/// When a cost is negative or not finite, or the budget is not a number.
#[must_use]
pub fn within_budget(items: &[Item], budget: f64) -> Vec<bool> {
    assert!(!budget.is_nan(), "the budget is not a number");
    let mut taken = vec![false; items.len()];
    let mut spent = 0.0;
    for i in order(items) {
        if spent + items[i].cost <= budget {
            spent += items[i].cost;
            taken[i] = true;
        }
    }
    taken
}

/// Saves at least `want` bytes at a small total cost; by item, whether it is taken. The cost exceeds the optimum by
/// less than that of one item.
///
/// Of the choices "the first k by cost per byte, and one more that closes the gap at the least cost" the cheapest is
/// taken; then whatever has a cost and is not needed is left out again, the dearest first.
///
/// # Errors
/// When all items together save less.
///
/// # Panics
/// When a cost is negative or not finite.
pub fn reaching(items: &[Item], want: u64) -> Result<Vec<bool>, Unreachable> {
    let order = order(items);
    let best: u64 = items.iter().map(|item| item.bytes).sum();
    if best < want {
        return Err(Unreachable { want, best });
    }
    let (mut cost, mut bytes) = (0.0, 0);
    let mut cheapest: Option<(f64, usize, Option<usize>)> = None; // cost, how many of the order, the one that closes
    for k in 0..=order.len() {
        let (closing, total) = if bytes >= want {
            (None, cost)
        } else {
            let closes = |&i: &usize| bytes + items[i].bytes >= want;
            // Of equals the first in order.
            let closing =
                order[k..].iter().copied().filter(closes).min_by(|&a, &b| items[a].cost.total_cmp(&items[b].cost));
            (closing, closing.map_or(f64::INFINITY, |i| cost + items[i].cost))
        };
        if total.is_finite() && cheapest.is_none_or(|(least, ..)| total < least) {
            cheapest = Some((total, k, closing));
        }
        if bytes >= want || k == order.len() {
            break;
        }
        cost += items[order[k]].cost;
        bytes += items[order[k]].bytes;
    }
    let (_, k, closing) = cheapest.expect("all items together reach it");
    let mut taken = vec![false; items.len()];
    order[..k].iter().chain(&closing).for_each(|&i| taken[i] = true);
    let mut saved: u64 = items.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(item, _)| item.bytes).sum();
    let mut dear: Vec<usize> = (0..items.len()).filter(|&i| taken[i] && items[i].cost > 0.0).collect();
    dear.sort_by(|&a, &b| items[b].cost.total_cmp(&items[a].cost)); // stable: of equals the first
    for i in dear {
        if saved - items[i].bytes >= want {
            saved -= items[i].bytes;
            taken[i] = false;
        }
    }
    Ok(taken)
}

/// Items that save something, by cost per byte ascending; of equals the one that saves more, then the first.
fn order(items: &[Item]) -> Vec<usize> {
    for item in items {
        assert!(item.cost.is_finite() && item.cost >= 0.0, "a cost of {} nats", item.cost);
    }
    #[allow(clippy::cast_precision_loss)] // only an order is wanted
    let price = |i: usize| items[i].cost / items[i].bytes as f64;
    let mut order: Vec<usize> = (0..items.len()).filter(|&i| items[i].bytes > 0).collect();
    order.sort_by(|&a, &b| price(a).total_cmp(&price(b)).then(items[b].bytes.cmp(&items[a].bytes)).then(a.cmp(&b)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    fn items(pairs: &[(f64, u64)]) -> Vec<Item> {
        pairs.iter().map(|&(cost, bytes)| Item { cost, bytes }).collect()
    }

    fn total(items: &[Item], taken: &[bool]) -> (f64, u64) {
        let chosen = || items.iter().zip(taken).filter(|(_, taken)| **taken).map(|(item, _)| item);
        (chosen().map(|i| i.cost).sum(), chosen().map(|i| i.bytes).sum())
    }

    #[test]
    fn by_hand() {
        let five = items(&[(3.0, 1), (0.0, 5), (1.0, 4), (2.0, 8), (9.0, 0)]);
        assert_eq!(within_budget(&five, 0.0), [false, true, false, false, false]);
        assert_eq!(within_budget(&five, 1.5), [false, true, true, false, false]);
        // Equal prices of .25: the larger first, and then the smaller still fits.
        assert_eq!(within_budget(&five, 2.0), [false, true, false, true, false]);
        assert_eq!(within_budget(&five, f64::INFINITY), [true, true, true, true, false]);
        assert_eq!(reaching(&five, 0), Ok(vec![false; 5]));
        assert_eq!(reaching(&five, 5), Ok(vec![false, true, false, false, false]));
        assert_eq!(reaching(&five, 9), Ok(vec![false, true, true, false, false]));
        assert_eq!(reaching(&five, 18), Ok(vec![true, true, true, true, false]));
        assert_eq!(reaching(&five, 19), Err(Unreachable { want: 19, best: 18 }));
        // The first by price is not needed once the large one is in.
        assert_eq!(reaching(&items(&[(1.0, 2), (10.0, 10)]), 10), Ok(vec![false, true]));
    }

    #[test]
    fn equal_items_are_taken_in_order() {
        let equal = items(&[(1.0, 2); 4]);
        assert_eq!(within_budget(&equal, 2.0), [true, true, false, false]);
        assert_eq!(reaching(&equal, 3), Ok(vec![true, true, false, false]));
    }

    /// Against all subsets of up to ten items, ties and zeros among them. Costs are binary fractions, so that sums are
    /// exact in any order.
    #[test]
    fn within_one_item_of_the_optimum() {
        let random = Random::new(11);
        let mut counter = 0;
        let mut below = |len: usize| {
            counter += 1;
            random.index(counter, len)
        };
        for case in 0..400 {
            let list: Vec<Item> = (0..1 + below(10))
                .map(|_| {
                    let cost = [0.0, 1.0, 1.0, 2.5, 7.0, 40.0][below(6)] * [1.0 / 64.0, 1.0][below(2)];
                    Item { cost, bytes: [1, 2, 3, 8, 8, 50][below(6)] }
                })
                .collect();
            let all: f64 = list.iter().map(|i| i.cost).sum();
            let bytes: u64 = list.iter().map(|i| i.bytes).sum();
            let budget = all * 0.125 * f64::from(u32::try_from(below(9)).unwrap());
            let want = bytes * below(9) as u64 / 8;
            let (mut most, mut least) = (0, f64::INFINITY);
            for mask in 0..1_u32 << list.len() {
                let taken: Vec<bool> = (0..list.len()).map(|i| mask >> i & 1 == 1).collect();
                let (cost, saved) = total(&list, &taken);
                if cost <= budget {
                    most = most.max(saved);
                }
                if saved >= want {
                    least = least.min(cost);
                }
            }
            let (cost, saved) = total(&list, &within_budget(&list, budget));
            let largest = list.iter().map(|i| i.bytes).max().unwrap();
            assert!(cost <= budget * (1.0 + 1e-12), "case {case}: {cost} of {budget} nats");
            assert!(saved <= most && saved + largest > most, "case {case}: {saved} of {most} bytes, {list:?}");
            let (cost, saved) = total(&list, &reaching(&list, want).unwrap());
            let dearest = list.iter().map(|i| i.cost).fold(0.0, f64::max);
            assert!(saved >= want, "case {case}: {saved} of {want} bytes");
            let slack = 1e-12 * all;
            assert!(cost >= least - slack && cost <= least + dearest + slack, "case {case}: {cost}, {least}, {list:?}");
        }
    }
}

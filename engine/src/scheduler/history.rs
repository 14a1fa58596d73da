//! Which version made what, by position.

use super::types::Segment;

/// Segments (first position, version): positions rise, neighbours differ in version. Each ends where the next begins;
/// where the last one ends is its owner's to know.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Vec<Segment>);

impl History {
    /// One version from the beginning.
    pub(super) fn of(version: u64) -> History {
        History(vec![(0, version)])
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.0
    }

    pub(super) fn into_segments(self) -> Vec<Segment> {
        self.0
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// From `position` on it is `version`.
    pub(super) fn record(&mut self, position: usize, version: u64) {
        if self.0.last().is_none_or(|&(_, last)| last != version) {
            self.0.push((position, version));
        }
    }

    /// The version at `position`.
    pub(super) fn at(&self, position: usize) -> u64 {
        let after = self.0.partition_point(|&(first, _)| first <= position);
        self.0[after - 1].1
    }

    /// Where the segment of `position` ends, if not at the end.
    pub(super) fn segment_end(&self, position: usize) -> Option<usize> {
        let after = self.0.partition_point(|&(first, _)| first <= position);
        self.0.get(after).map(|&(first, _)| first)
    }

    /// The only version, if there is one.
    pub(super) fn only(&self) -> Option<u64> {
        match self.0[..] {
            [(_, version)] => Some(version),
            _ => None,
        }
    }

    /// The oldest version from `position` on.
    pub(super) fn oldest_from(&self, position: usize) -> Option<u64> {
        let after = self.0.partition_point(|&(first, _)| first <= position);
        self.0[after.saturating_sub(1)..].iter().map(|&(_, version)| version).min()
    }

    /// How many of the first `len` positions are of `version`.
    pub(super) fn begins_with(&self, version: u64, len: usize) -> usize {
        match self.0.first() {
            Some(&(_, first)) if first == version => self.segment_end(0).unwrap_or(len).min(len),
            _ => 0,
        }
    }

    /// How many of the first `len` positions, which both have, are of the same versions in both.
    pub(super) fn agree(&self, other: &History, len: usize) -> usize {
        let mut at = 0;
        while at < len && self.at(at) == other.at(at) {
            let next = |history: &History| history.segment_end(at).unwrap_or(len);
            at = next(self).min(next(other)).min(len);
        }
        at
    }

    /// Becomes the first `len` positions of `other`.
    pub(super) fn copy_prefix(&mut self, other: &History, len: usize) {
        self.0.clear();
        self.0.extend(other.0.iter().take_while(|&&(first, _)| first < len));
    }
}

#[cfg(test)]
mod tests {
    use super::History;

    #[test]
    fn segments_answer_for_every_position() {
        let mut one = History::default();
        for (position, version) in [(0, 3), (5, 3), (7, 4), (9, 6)] {
            one.record(position, version);
        }
        assert_eq!(one.segments(), [(0, 3), (7, 4), (9, 6)]);
        assert_eq!((one.at(0), one.at(6), one.at(7), one.at(100)), (3, 3, 4, 6));
        assert_eq!((one.segment_end(0), one.segment_end(8), one.segment_end(9)), (Some(7), Some(9), None));
        assert_eq!((one.oldest_from(0), one.oldest_from(8), one.only()), (Some(3), Some(4), None));
        let mut two = History::default();
        two.copy_prefix(&one, 8);
        assert_eq!(two.segments(), [(0, 3), (7, 4)]);
        assert_eq!((one.agree(&two, 9), one.agree(&two, 12), one.agree(&two, 4)), (9, 9, 4));
        assert_eq!((one.begins_with(3, 9), one.begins_with(3, 5), one.begins_with(4, 9)), (7, 5, 0));
        assert_eq!(History::default().oldest_from(0), None);
    }
}

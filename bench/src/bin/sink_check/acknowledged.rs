//! What a broker has acknowledged, publisher by publisher, as a text file: a line each, the publisher's number and the ranges of its
//! acknowledged numbers: `7 0-123,125-130`.

use super::found::Found;
use std::fmt::Write;
use std::path::Path;

/// Numbers as ranges, in ascending order and apart from each other.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds a number; adding one again changes nothing.
    pub fn add(&mut self, number: u32) {
        // Acknowledgements come in order, or nearly so.
        let at = self.0.iter().rposition(|&(first, _)| first <= number);
        match at {
            Some(at) if number <= self.0[at].1 => return,
            Some(at) if number == self.0[at].1 + 1 => self.0[at].1 = number,
            Some(at) => self.0.insert(at + 1, (number, number)),
            None => self.0.insert(0, (number, number)),
        }
        let at = at.unwrap_or(0);
        for at in [at + 1, at] {
            if let (Some(&left), Some(&right)) = (self.0.get(at), self.0.get(at + 1))
                && left.1 + 1 == right.0
            {
                self.0[at].1 = right.1;
                self.0.remove(at + 1);
            }
        }
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|&(first, last)| first..=last)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(first, last)| u64::from(last - first) + 1).sum()
    }
}

/// Writes the file; publishers without acknowledgements have no line.
pub fn write<'a>(path: &Path, publishers: impl Iterator<Item = (u32, &'a Ranges)>) -> Result<(), String> {
    let mut text = String::new();
    for (publisher, ranges) in publishers.filter(|(_, ranges)| !ranges.0.is_empty()) {
        let _ = write!(text, "{publisher} ");
        for (index, (first, last)) in ranges.0.iter().enumerate() {
            let _ = write!(text, "{}{first}-{last}", if index > 0 { "," } else { "" });
        }
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn read(path: &Path) -> Result<Vec<(u32, Ranges)>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = |line: &str| {
        let (publisher, ranges) = line.split_once(' ')?;
        let range = |range: &str| {
            let (first, last) = range.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?)).filter(|(first, last)| first <= last)
        };
        Some((publisher.parse().ok()?, Ranges(ranges.split(',').map(range).collect::<Option<_>>()?)))
    };
    let lines = text.lines().enumerate();
    lines.map(|(number, text)| line(text).ok_or(format!("{}:{}: no ranges", path.display(), number + 1))).collect()
}

/// The acknowledged messages, held against what was found.
#[derive(PartialEq, Eq, Debug)]
pub struct Comparison {
    pub acknowledged: u64,
    pub missing: u64,
    /// Some of the missing, as publisher and number.
    pub examples: Vec<(u32, u32)>,
    /// Found without an acknowledgement: it was lost on its way, or has not come yet.
    pub unacknowledged: u64,
}

pub fn compare(acknowledged: &[(u32, Ranges)], found: &Found) -> Comparison {
    let mut comparison = Comparison { acknowledged: 0, missing: 0, examples: Vec::new(), unacknowledged: 0 };
    for (publisher, ranges) in acknowledged {
        comparison.acknowledged += ranges.count();
        for number in ranges.numbers().filter(|&number| !found.has(*publisher, number)) {
            comparison.missing += 1;
            if comparison.examples.len() < 10 {
                comparison.examples.push((*publisher, number));
            }
        }
    }
    comparison.unacknowledged = found.distinct - (comparison.acknowledged - comparison.missing);
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(numbers: &[u32]) -> Ranges {
        let mut ranges = Ranges::default();
        numbers.iter().for_each(|&number| ranges.add(number));
        ranges
    }

    #[test]
    fn numbers_in_any_order_become_the_fewest_ranges() {
        assert_eq!(ranges(&[5, 3, 4, 0, 9, 8, 1, 2, 9, 0]), Ranges(vec![(0, 5), (8, 9)]));
        assert_eq!(ranges(&[1, 3, 5, 4, 2]), Ranges(vec![(1, 5)]));
        assert_eq!(ranges(&[7, 6]), Ranges(vec![(6, 7)]));
        assert_eq!(ranges(&[1, 3, 5]).numbers().collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(ranges(&[0, 1, 2, 9]).count(), 4);
    }

    #[test]
    fn a_file_reads_back_and_says_where_it_is_wrong() {
        let path = std::env::temp_dir().join(format!("acknowledged-{}", std::process::id()));
        let (first, second) = (ranges(&[0, 1, 2, 9]), Ranges::default());
        write(&path, [(3, &first), (4, &second)].into_iter()).unwrap();
        assert_eq!(read(&path), Ok(vec![(3, first)]));
        std::fs::write(&path, "1 0-2\n2 5-4\n").unwrap();
        assert!(read(&path).unwrap_err().ends_with(":2: no ranges"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_was_acknowledged_and_is_not_there_is_missing() {
        let mut found = Found::default();
        for (publisher, number) in [(0, 0), (0, 1), (0, 3), (1, 0), (1, 0)] {
            found.note(publisher, number, 0);
        }
        let comparison = compare(&[(0, ranges(&[0, 1, 2])), (5, ranges(&[8]))], &found);
        let expected = Comparison { acknowledged: 4, missing: 2, examples: vec![(0, 2), (5, 8)], unacknowledged: 2 };
        assert_eq!(comparison, expected);
    }
}

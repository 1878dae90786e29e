//! Seeded numbers, topics and filters for this folder's tests: from an alphabet so small that most filters match something.

use super::hash::mix;

/// A sequence of numbers that is the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }

    /// One to `levels_max` levels, empty ones and leading `$` included.
    pub fn topic(&mut self, levels_max: u64) -> String {
        loop {
            let levels = 1 + self.below(levels_max);
            let topic: Vec<&str> = (0..levels)
                .map(|at| if at == 0 { self.pick(&["a", "b", "", "$a"]) } else { self.pick(&["a", "b", "", "a!", "$a"]) })
                .collect();
            let topic = topic.join("/");
            if !topic.is_empty() {
                return topic;
            }
        }
    }

    /// As [`Self::topic`], with wildcards in it more often than not.
    pub fn filter(&mut self, levels_max: u64) -> String {
        let topic = self.topic(levels_max);
        let multi = self.below(3) == 0;
        let mut levels: Vec<&str> = topic.split('/').map(|level| if self.below(3) == 0 { "+" } else { level }).collect();
        if multi {
            levels.push("#");
            if self.below(8) == 0 {
                return "#".to_owned();
            }
        }
        levels.join("/")
    }
}

//! The rules of one shard, found by topic through the same index that finds subscriptions: a message costs what its own rules cost,
//! however many others there are.

use super::error::Failure;
use super::input::{Input, Source, View};
use super::rule::{Rows, Rule, Verdict};
use crate::topic::{FilterIndex, Hasher, TopicKey, matches};
use smallvec::SmallVec;
use std::cell::Cell;

/// What became of what a rule has matched. `matched` is the sum of `passed`, `no_result` and `failed`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages and events that FROM matched.
    pub matched: Cell<u64>,
    /// Of these, those that made rows.
    pub passed: Cell<u64>,
    /// Those for which WHERE was not true, or FOREACH found nothing.
    pub no_result: Cell<u64>,
    /// Those for which an expression failed.
    pub failed: Cell<u64>,
    /// Actions taken for rows.
    pub actions: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// One way in which a topic leads to a rule.
#[derive(Clone, Copy)]
struct Entry {
    rule: u32,
    /// Which of its filters.
    filter: u32,
}

/// See the module.
pub struct RuleSet {
    rules: Vec<(Rule, Counters)>,
    topics: FilterIndex<Entry>,
    hasher: Hasher,
    /// The rules of each event.
    events: [Vec<u32>; Source::ALL.len()],
}

impl RuleSet {
    /// The hasher must be the one that topic keys are made with.
    pub fn new(rules: Vec<Rule>, hasher: Hasher) -> Self {
        let mut topics = FilterIndex::new();
        let mut events: [Vec<u32>; Source::ALL.len()] = Default::default();
        for (rule, planned) in (0u32..).zip(&rules) {
            for (filter, text) in (0u32..).zip(planned.filters()) {
                topics.insert(&hasher, text, Entry { rule, filter });
            }
            for event in planned.events() {
                events[*event as usize].push(rule);
            }
        }
        let rules = rules.into_iter().map(|rule| (rule, Counters::default())).collect();
        Self { rules, topics, hasher, events }
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// A rule by its place in what the set was made of.
    pub fn rule(&self, rule: usize) -> &Rule {
        &self.rules[rule].0
    }

    pub fn counters(&self, rule: usize) -> &Counters {
        &self.rules[rule].1
    }

    /// Whether any rule is about an event: who raises it need not gather its fields otherwise.
    pub fn wants(&self, event: Source) -> bool {
        !self.events[event as usize].is_empty()
    }

    /// Calls `f` with each rule that matches a message, in their order, and the rows that it makes or the failure. A rule whose filters
    /// match twice is called once. `key` must be of the input's topic.
    pub fn publish<'m>(
        &self,
        key: &TopicKey<'_>,
        input: Input<'m>,
        f: impl FnMut(usize, &View<'m>, Result<Rows<'_>, Box<Failure>>),
    ) {
        let mut matched: SmallVec<[u32; 8]> = SmallVec::new();
        self.topics.for_each_match(&self.hasher, key, |entry| {
            // What the index finds may be a collision.
            if matches(&self.rules[entry.rule as usize].0.filters[entry.filter as usize], key.topic()) {
                matched.push(entry.rule);
            }
        });
        if matched.is_empty() {
            return;
        }
        if matched.len() > 1 {
            matched.sort_unstable();
            matched.dedup();
        }
        self.run(&matched, &View::new(Source::Message, input), f);
    }

    /// As [`RuleSet::publish`], for an event.
    pub fn event<'m>(&self, event: Source, input: Input<'m>, f: impl FnMut(usize, &View<'m>, Result<Rows<'_>, Box<Failure>>)) {
        let rules = &self.events[event as usize];
        if !rules.is_empty() {
            self.run(rules, &View::new(event, input), f);
        }
    }

    fn run<'m>(&self, rules: &[u32], view: &View<'m>, mut f: impl FnMut(usize, &View<'m>, Result<Rows<'_>, Box<Failure>>)) {
        for rule in rules {
            let (planned, counters) = &self.rules[*rule as usize];
            count(&counters.matched);
            match planned.run(view) {
                Ok(Verdict::Passed(rows)) => {
                    count(&counters.passed);
                    f(*rule as usize, view, Ok(rows));
                }
                Ok(Verdict::Filtered | Verdict::Nothing) => count(&counters.no_result),
                Err(failure) => {
                    count(&counters.failed);
                    f(*rule as usize, view, Err(failure));
                }
            }
        }
    }
}

//! The rules of one shard, found by topic through the same index that finds subscriptions: a message costs what its own rules cost,
//! however many others there are.

use super::error::Failure;
use super::input::{Input, Source, View};
use super::rule::{Rule, Verdict};
use crate::topic::{FilterIndex, Hasher, TopicKey, matches};
use smallvec::SmallVec;

/// What became of what a rule has matched, and of the rows that it made. `matched` is the sum of `passed`, `no_result` and `failed`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RuleCounts {
    /// Messages and events that FROM matched.
    pub matched: u64,
    /// Of these, those that made rows.
    pub passed: u64,
    /// Those for which WHERE was not true, or FOREACH found nothing.
    pub no_result: u64,
    /// Those for which an expression of the rule failed, or that would have made too much.
    pub failed: u64,
    /// Actions taken for rows.
    pub actions: u64,
    /// Actions not taken: for want of room, because an expression in their template failed or made no topic to publish to, or because messages
    /// republished each other too often.
    pub dropped: u64,
}

impl RuleCounts {
    pub const COUNT: usize = 6;
    pub const NAMES: [&'static str; Self::COUNT] = ["matched", "passed", "no_result", "failed", "actions", "dropped"];

    pub fn values(&self) -> [u64; Self::COUNT] {
        [self.matched, self.passed, self.no_result, self.failed, self.actions, self.dropped]
    }

    /// The sum of values of [`RuleCounts::values`].
    pub fn sum(all: impl Iterator<Item = [u64; Self::COUNT]>) -> Self {
        let [matched, passed, no_result, failed, actions, dropped] = all.fold([0; Self::COUNT], |mut sum, values| {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            sum
        });
        Self { matched, passed, no_result, failed, actions, dropped }
    }

    pub fn count(&mut self, tally: Tally) {
        self.matched += 1;
        *match tally {
            Tally::Passed => &mut self.passed,
            Tally::NoResult => &mut self.no_result,
            Tally::Failed => &mut self.failed,
        } += 1;
    }
}

/// How a rule's look at a message came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tally {
    Passed,
    NoResult,
    Failed,
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
    rules: Vec<Rule>,
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
        &self.rules[rule]
    }

    /// Whether any rule is about an event: who raises it need not gather its fields otherwise.
    pub fn wants(&self, event: Source) -> bool {
        !self.events[event as usize].is_empty()
    }

    /// Calls `f` with each rule that matches a message, in their order, and what it makes of it or the failure. A rule whose filters
    /// match twice is called once. `key` must be of the input's topic.
    pub fn publish<'m>(
        &self,
        key: &TopicKey<'_>,
        input: Input<'m>,
        f: impl FnMut(usize, &View<'m>, Result<Verdict<'_>, Box<Failure>>),
    ) {
        let mut matched: SmallVec<[u32; 8]> = SmallVec::new();
        self.topics.for_each_match(&self.hasher, key, |entry| {
            // What the index finds may be a collision.
            if matches(&self.rules[entry.rule as usize].filters[entry.filter as usize], key.topic()) {
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
    pub fn event<'m>(&self, event: Source, input: Input<'m>, f: impl FnMut(usize, &View<'m>, Result<Verdict<'_>, Box<Failure>>)) {
        let rules = &self.events[event as usize];
        if !rules.is_empty() {
            self.run(rules, &View::new(event, input), f);
        }
    }

    fn run<'m>(&self, rules: &[u32], view: &View<'m>, mut f: impl FnMut(usize, &View<'m>, Result<Verdict<'_>, Box<Failure>>)) {
        for rule in rules {
            f(*rule as usize, view, self.rules[*rule as usize].run(view));
        }
    }
}

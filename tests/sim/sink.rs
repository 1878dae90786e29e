//! The sink core of a run: it takes records when chance has it, is away for seconds, answers in any order, and tells the oracle what it
//! has. A message that the rule matches must be there before its publisher is acknowledged.

use crate::oracle::Oracle;
use crate::random::Random;
use corelane::ids::TicketId;
use corelane::record::{ActionId, Record};
use corelane::rules::{Action, Part, PlannedRule, RecordAction, Rule, Template};
use corelane::shard::{Gate, Globals, WhenFull};
use corelane::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What the rule matches.
pub const FILTER: &str = "t/#";
/// Room before the sink: some dozens of small messages.
const GATE_BYTES: u64 = 6_000;

/// The rule of a run: every message of [`FILTER`] goes to the sink, and waits for it.
pub fn rules() -> Arc<[PlannedRule]> {
    let rule = Rule::parse(&format!("SELECT payload FROM \"{FILTER}\"")).expect("a rule");
    let payload = Part::Text(Template::parse("${payload}", &rule).expect("a template"));
    let action = RecordAction { id: ActionId(0), sink: 0, parts: vec![payload], ticketed: true };
    Arc::new([PlannedRule { name: "all".into(), rule, actions: vec![Action::Record(action)] }])
}

pub fn gate() -> Gate {
    Gate::new(GATE_BYTES, WhenFull::Hold)
}

#[derive(Default)]
struct Link {
    records: VecDeque<Record>,
    answers: VecDeque<TicketId>,
    taken: u64,
    shown: u64,
}

pub struct Sink {
    /// By core.
    links: Vec<Link>,
    /// Records that are on their way to the server, with the time at which it has them.
    under_way: Vec<(Time, usize, Record)>,
    away_until: Time,
}

impl Sink {
    pub fn new(cores: usize) -> Self {
        Self { links: (0..cores).map(|_| Link::default()).collect(), under_way: Vec::new(), away_until: Time(0) }
    }

    pub fn push(&mut self, core: usize, records: impl Iterator<Item = Record>) {
        self.links[core].records.extend(records);
    }

    /// What a core is told: how many records were taken, and an answer after the other.
    pub fn show(&mut self, core: usize) -> u64 {
        self.links[core].shown = self.links[core].taken;
        self.links[core].taken
    }

    pub fn answer(&mut self, core: usize) -> Option<TicketId> {
        self.links[core].answers.pop_front()
    }

    pub fn has_news(&self, core: usize) -> bool {
        let link = &self.links[core];
        !link.answers.is_empty() || link.taken != link.shown
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.links.iter().all(|link| link.records.is_empty() && link.answers.is_empty())
    }

    /// When something will happen by itself.
    pub fn next_time(&self) -> Option<Time> {
        let due = self.under_way.iter().map(|(at, ..)| *at).min();
        let work = !self.is_idle();
        due.into_iter().chain(work.then_some(self.away_until)).max()
    }

    /// One small thing. `false`: nothing was to be done.
    pub fn step(&mut self, globals: &Globals, random: &mut Random, oracle: &mut Oracle, now: Time, rough: bool) -> bool {
        if self.away_until > now {
            return false;
        }
        if rough && random.one_in(2_000) {
            self.away_until = now + Duration::from_millis(random.between(1, 8_000));
            return true;
        }
        let core = random.below(self.links.len());
        if random.one_in(2)
            && let Some(record) = self.links[core].records.pop_front()
        {
            self.links[core].taken += 1;
            oracle.on_taken(record.part(0));
            let us = if random.one_in(20) { random.between(1, 500_000) } else { random.between(1, 3_000) };
            self.under_way.push((now + Duration::from_micros(us), core, record));
            return true;
        }
        let due = |(at, ..): &(Time, usize, Record)| *at <= now;
        if let Some(position) = self.under_way.iter().position(due) {
            let (_, core, record) = self.under_way.swap_remove(position);
            oracle.on_record(record.part(0));
            globals.gates[0].leave(1, record.bytes());
            globals.memory_bytes.add(-(record.bytes() as i64));
            self.links[core].answers.extend(record.ticket);
            return true;
        }
        self.links.iter().any(|link| !link.records.is_empty())
    }
}

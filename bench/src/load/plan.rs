//! A scenario as the workers use it: templates parsed, numbers resolved, clients numbered. It is made once and shared.
//!
//! Client `i` of a group belongs to worker `i % workers`, so clients of equal index in different groups meet in one worker. The
//! publishers of all groups are numbered one after the other.

use super::scenario::Scenario;
use super::stamp::Track;
use super::template::Template;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

pub struct Plan {
    pub addresses: Vec<SocketAddr>,
    /// Empty: the kernel chooses.
    pub sources: Vec<IpAddr>,
    pub workers: u32,
    /// Workers look for work without sleeping.
    pub spin: bool,
    /// Clients of one worker that wait for CONNACK at a time; further connects wait, their times running.
    pub greeting_max: u32,
    pub groups: Vec<Group>,
    /// What has come from each publisher, for groups with shared subscriptions, whose members share a publisher's messages.
    pub tracks: Vec<Mutex<Track>>,
    /// Some group is closed loop, so receivers have to tell the sender.
    pub windows: bool,
}

pub struct Group {
    pub count: u32,
    /// Number of its first client among all clients.
    pub first: u32,
    /// Nanoseconds between two connects of the whole group; 0: none.
    pub connect_gap_ns: f64,
    pub keep_alive_s: u16,
    pub v5: bool,
    pub clean: bool,
    pub session_expiry_s: u32,
    pub client_id: Template,
    pub will: Option<(Template, u8)>,
    pub subscribe: Vec<(Template, u8)>,
    /// Its subscriptions are shared ones.
    pub shared: bool,
    pub publish: Option<Publish>,
}

pub struct Publish {
    pub topic: Template,
    pub size: usize,
    pub json: bool,
    pub qos: u8,
    /// The clients below this index publish.
    pub publishers: u32,
    pub pace: Pace,
    /// Per client.
    pub messages: u32,
    pub copies: u32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// Nanoseconds between two messages of a client; 0: all are due at once.
    Open {
        every_ns: f64,
    },
    Closed {
        window: u32,
        batch: u32,
    },
}

impl Plan {
    /// `scenario` is valid, so its templates parse.
    pub fn new(scenario: &Scenario, addresses: Vec<SocketAddr>, sources: Vec<IpAddr>, workers: u32) -> Result<Self, String> {
        let mut first = 0;
        let mut groups = Vec::new();
        for group in &scenario.groups {
            let count = group.count as u32;
            let default_id = format!("{}-{{i}}", group.name);
            let publish = match &group.publish {
                None => None,
                Some(publish) => Some(Publish {
                    topic: Template::parse(&publish.topic)?,
                    size: publish.size,
                    json: publish.json,
                    qos: publish.qos,
                    publishers: ((f64::from(count) * publish.share).round() as u32).clamp(1, count),
                    pace: match publish.window {
                        Some(window) => Pace::Closed { window, batch: publish.batch.unwrap_or(window) },
                        None => Pace::Open { every_ns: publish.every_s.unwrap_or(0.0) * 1e9 },
                    },
                    messages: publish.messages.unwrap_or(u32::MAX),
                    copies: scenario.copies(group),
                }),
            };
            groups.push(Group {
                count,
                first,
                connect_gap_ns: if group.connect_rate > 0.0 { 1e9 / group.connect_rate } else { 0.0 },
                keep_alive_s: group.keep_alive_s,
                v5: group.version == 5,
                clean: group.clean,
                session_expiry_s: group.session_expiry_s,
                client_id: Template::parse(group.client_id.as_deref().unwrap_or(&default_id))?,
                will: group.will.as_ref().map(|will| Ok::<_, String>((Template::parse(&will.topic)?, will.qos))).transpose()?,
                subscribe: group
                    .subscribe
                    .iter()
                    .map(|subscribe| Ok::<_, String>((Template::parse(&subscribe.filter)?, subscribe.qos)))
                    .collect::<Result<_, _>>()?,
                shared: group.subscribe.iter().any(|subscribe| subscribe.filter.starts_with("$share/")),
                publish,
            });
            first += count;
        }
        let windows =
            groups.iter().any(|group| group.publish.as_ref().is_some_and(|publish| matches!(publish.pace, Pace::Closed { .. })));
        let tracked = if groups.iter().any(|group| group.shared) { first as usize } else { 0 };
        let tracks = (0..tracked).map(|_| Mutex::default()).collect();
        Ok(Self { addresses, sources, workers, spin: false, greeting_max: u32::MAX, groups, tracks, windows })
    }

    /// Group and index of the client with this number among all.
    pub fn locate(&self, client: u32) -> Option<(usize, u32)> {
        let group = self.groups.iter().rposition(|group| group.first <= client)?;
        let index = client - self.groups[group].first;
        (index < self.groups[group].count).then_some((group, index))
    }

    /// How many of the first `count` clients of a group belong to a worker.
    pub fn share_of(&self, worker: u32, count: u32) -> u32 {
        (count + self.workers - 1 - worker) / self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_dealt_to_workers_and_found_by_number() {
        let group = |name: &str, count| format!("[[group]]\nname = \"{name}\"\ncount = {count}\n");
        let text = format!("description = \"\"\nsource = \"\"\nphase = []\n{}{}", group("a", 7), group("b", 2));
        let scenario = Scenario::parse(&text).unwrap();
        let plan = Plan::new(&scenario, Vec::new(), Vec::new(), 3).unwrap();
        assert_eq!((0..3).map(|worker| plan.share_of(worker, 7)).collect::<Vec<_>>(), [3, 2, 2]);
        assert_eq!((0..3).map(|worker| plan.share_of(worker, 2)).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(plan.locate(6), Some((0, 6)));
        assert_eq!(plan.locate(7), Some((1, 0)));
        assert_eq!(plan.locate(9), None);
    }
}

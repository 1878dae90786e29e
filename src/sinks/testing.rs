//! What the tests of this module share.

use super::options::{ActionOptions, Confirm, SinkOptions, SourceOptions};
use super::target::Target;
use super::{CoreOptions, Handle, gate_bytes_max};
use crate::ids::TicketId;
use crate::message::Message;
use crate::record::{ActionId, Outcome, Parts, Record};
use crate::runtime::Doorbell;
use crate::runtime::sink_link::{Reply, ShardEnd, SinkCore, connect};
use crate::shard::{Gate, Globals};
use crate::topic::Hasher;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A directory that goes with its test.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("corelane-sinks-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub fn record(action: u16, parts: &[&[u8]]) -> Record {
    let mut writer = Parts::default();
    for part in parts {
        writer.part().extend_from_slice(part);
        writer.end();
    }
    Record::new(ActionId(action), 1_700_000_000_000_000, false, &mut writer)
}

/// A record whose only part is a number of six digits, with a ticket of that number.
pub fn numbered(action: u16, number: u64) -> Record {
    let mut record = record(action, &[format!("{number:06}").as_bytes()]);
    record.ticket = Some(TicketId { slot: number as u32, generation: 0 });
    record
}

/// Waits until something is so, and gives up after a time that is never needed.
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A sink core with shards that are only the ends of its rings.
pub struct World {
    pub handle: Handle,
    pub globals: Arc<Globals>,
    pub shards: Vec<ShardEnd>,
    /// What sources have published, with the shard that it went to.
    pub messages: Vec<(usize, Message)>,
    accepted: Vec<u64>,
}

impl World {
    /// `actions`: the sink and the confirmation of each.
    pub fn start(
        shards: usize,
        sinks: Vec<SinkOptions>,
        actions: &[(u8, Confirm)],
        targets: impl Fn(usize) -> Option<Arc<dyn Target>> + Send + 'static,
    ) -> Self {
        Self::try_start(shards, sinks, actions, targets).unwrap()
    }

    pub fn try_start(
        shards: usize,
        sinks: Vec<SinkOptions>,
        actions: &[(u8, Confirm)],
        targets: impl Fn(usize) -> Option<Arc<dyn Target>> + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(shards, sinks, actions, Vec::new(), targets)
    }

    pub fn start_with(
        shards: usize,
        sinks: Vec<SinkOptions>,
        actions: &[(u8, Confirm)],
        sources: Vec<SourceOptions>,
        targets: impl Fn(usize) -> Option<Arc<dyn Target>> + Send + 'static,
    ) -> io::Result<Self> {
        let bells: Arc<[Doorbell]> = (0..shards).map(|_| Doorbell::new().unwrap()).collect();
        let (shards, end) = connect(&bells)?;
        let gates = sinks.iter().map(|sink| Gate::new(gate_bytes_max(&sink.buffer), sink.buffer.when_full)).collect();
        let globals = Arc::new(Globals { gates, ..Globals::default() });
        let action = |(id, (sink, confirm)): (usize, &(u8, Confirm))| ActionOptions {
            id: ActionId(id as u16),
            label: format!("rule/{id}"),
            sink: *sink,
            confirm: *confirm,
        };
        let actions = actions.iter().enumerate().map(action).collect();
        let options = CoreOptions {
            sinks,
            actions,
            sources,
            globals: Arc::clone(&globals),
            hasher: Hasher::from_seed(1),
            limits: Arc::default(),
            cpu: None,
        };
        let handle = super::core::start_with(end, options, targets)?;
        let accepted = vec![0; shards.len()];
        Ok(Self { handle, globals, shards, messages: Vec::new(), accepted })
    }

    /// Pushes [`numbered`] records as a shard does.
    pub fn push(&mut self, shard: usize, action: u16, numbers: impl Iterator<Item = u64>) {
        self.push_records(shard, action.into(), numbers.map(|number| numbered(action, number)).collect());
    }

    /// Pushes records for a sink as a shard does. The sink of an action has its number here, or is the only one.
    pub fn push_records(&mut self, shard: usize, sink: usize, mut records: Vec<Record>) {
        for record in &records {
            self.globals.gates[sink.min(self.globals.gates.len() - 1)].enter(record.bytes());
            self.globals.memory_bytes.add(record.bytes() as i64);
        }
        self.shards[shard].push(&mut records);
    }

    /// What has come for a shard; messages are accepted and kept in [`World::messages`].
    pub fn answers_now(&mut self, shard: usize) -> Vec<(u32, Outcome)> {
        let mut answers = Vec::new();
        while let Some(reply) = self.shards[shard].reply() {
            match reply {
                Reply::Answer { ticket, outcome } => answers.push((ticket.slot, outcome)),
                Reply::Publish(message) => {
                    self.messages.push((shard, message));
                    self.accepted[shard] += 1;
                    self.shards[shard].accept(self.accepted[shard]);
                }
            }
        }
        answers
    }

    /// So many answers for a shard, and no more than that.
    pub fn answers(&mut self, shard: usize, count: usize) -> Vec<(u32, Outcome)> {
        let mut answers = Vec::new();
        wait_until(|| {
            answers.extend(self.answers_now(shard));
            answers.len() >= count
        });
        assert_eq!(answers.len(), count);
        answers
    }

    pub fn status(&self) -> HashMap<String, String> {
        self.handle.status().into_iter().collect()
    }

    pub fn memory(&self) -> u64 {
        self.globals.memory_bytes.get()
    }

    pub fn assert_gate_empty(&self) {
        wait_until(|| {
            let held = |gate: &Gate| gate.buffered_bytes.get() + gate.buffered_records.get();
            self.globals.gates.iter().all(|gate| held(gate) == 0)
        });
    }

    pub fn assert_nothing_held(&self) {
        self.assert_gate_empty();
        wait_until(|| self.memory() == 0);
    }

    /// Ends the core as a kill would, without a last checkpoint.
    pub fn kill(&self) {
        self.handle.kill();
    }

    /// CPU time of the core's thread in clock ticks.
    pub fn thread_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.handle.task())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

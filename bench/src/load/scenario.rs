//! A scenario: groups of clients, the phases they go through, and what has to hold at the end. Written in TOML; every unknown key
//! is an error. Numbers are those of the full size; [`Scenario::scaled`] makes it smaller.

use super::stamp::{JSON_BYTES_MIN, STAMP_BYTES};
use super::template::Template;
use serde::Deserialize;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub description: String,
    /// Where the shape and its numbers come from.
    pub source: String,
    /// What the broker's CPU in the measured phases is divided by.
    #[serde(default)]
    pub cost: Cost,
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    #[serde(default)]
    pub check: Check,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// Messages published plus messages delivered.
    #[default]
    Message,
    /// Messages delivered.
    Delivery,
    /// Connections made.
    Connection,
    /// Memory of an idle connection: the slope between the first and the last measured phase.
    Idle,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub name: String,
    pub count: u64,
    /// Whether `--scale` makes the group smaller. A lone publisher, say, is not scaled.
    #[serde(default = "yes")]
    pub scaled: bool,
    /// Connections begun per second by the whole group; 0 is all at once.
    #[serde(default)]
    pub connect_rate: f64,
    #[serde(default = "keep_alive")]
    pub keep_alive_s: u16,
    /// 4 is MQTT 3.1.1.
    #[serde(default = "version")]
    pub version: u8,
    #[serde(default = "yes")]
    pub clean: bool,
    /// v5 only.
    #[serde(default)]
    pub session_expiry_s: u32,
    /// Clients with the same id as those of another group take over its sessions; by default ids begin with the group's name.
    pub client_id: Option<String>,
    pub will: Option<Will>,
    #[serde(default)]
    pub subscribe: Vec<Subscribe>,
    pub publish: Option<Publish>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Will {
    pub topic: String,
    #[serde(default)]
    pub qos: u8,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    pub filter: String,
    #[serde(default)]
    pub qos: u8,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    pub topic: String,
    /// Payload bytes.
    pub size: usize,
    /// The payload is a JSON object.
    #[serde(default)]
    pub json: bool,
    #[serde(default)]
    pub qos: u8,
    /// Part of the group's clients that publish.
    #[serde(default = "one")]
    pub share: f64,
    /// Open loop: each client publishes so often, the clients evenly spread over the time.
    pub every_s: Option<f64>,
    /// Closed loop: so many messages of each client are in flight. One is until its copies have been received and, above QoS 0, it
    /// has been acknowledged. Its receivers have to be in the same worker: equal indexes are.
    pub window: Option<u32>,
    /// Closed loop: most messages that a client writes with one send. By default all that its window has room for.
    pub batch: Option<u32>,
    /// Each client stops after so many messages in all.
    pub messages: Option<u32>,
    /// How many receive each message.
    #[serde(default)]
    pub copies: Copies,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(untagged)]
pub enum Copies {
    Number(u32),
    /// Every client of the group with this name.
    Group(String),
}

impl Default for Copies {
    fn default() -> Self {
        Copies::Number(1)
    }
}

#[derive(Clone, Default, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    pub name: String,
    /// Groups that connect in this phase. Without `seconds` it ends when all their clients are in and subscribed.
    #[serde(default)]
    pub connect: Vec<String>,
    /// Groups that publish in this phase. Without `seconds` it ends when all that they have to send has been received.
    #[serde(default)]
    pub publish: Vec<String>,
    /// Groups whose connections are reset as the phase begins.
    #[serde(default)]
    pub reset: Vec<String>,
    pub seconds: Option<f64>,
    /// Longest time of a phase without `seconds`.
    #[serde(default = "patience")]
    pub patience_s: f64,
    #[serde(default)]
    pub measure: bool,
    pub search: Option<Search>,
}

/// The highest rate that the broker keeps up with: its phase is run again and again at rates that grow by `factor` until
/// one does not hold, and then bisected.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The group whose rate is changed.
    pub group: String,
    pub factor: f64,
    pub bisections: u32,
    /// Longest mean response (publish to PUBACK or PUBCOMP) for a rate to hold.
    pub mean_response_ms: Option<f64>,
    /// Longest 99th percentile of the delivery time for a rate to hold.
    pub p99_ms: Option<f64>,
    /// Least part of the due messages that is received within the step.
    pub received: f64,
}

/// The most that may be; `inf` where any number may be.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Check {
    pub lost: f64,
    pub duplicates: f64,
    pub out_of_order: f64,
    /// Connections that the broker closed, or that could not be made at the first attempt.
    pub failures: f64,
    /// Delivery times of each measured phase.
    pub p99_ms: f64,
    pub mean_ms: f64,
    /// Part of the due messages that is not sent: their client is not connected, or has no room for them until the end.
    pub unsent: f64,
    /// Messages of QoS 1 and 2 that are sent and not acknowledged to the end.
    pub unacknowledged: f64,
    /// Every client that a phase resets finds its session.
    pub sessions: bool,
    /// The will of every client that a phase resets reaches one watcher.
    pub wills: bool,
    /// Resident bytes of the broker per connection, where memory is what is asked for.
    pub resident_bytes: f64,
    /// Part of the pings without an answer. A few are on their way when the count is made.
    pub unanswered_pings: f64,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            lost: 0.0,
            duplicates: 0.0,
            out_of_order: 0.0,
            failures: 0.0,
            p99_ms: f64::INFINITY,
            mean_ms: f64::INFINITY,
            unsent: 0.0,
            unacknowledged: 0.0,
            sessions: false,
            wills: false,
            resident_bytes: f64::INFINITY,
            unanswered_pings: f64::INFINITY,
        }
    }
}

fn yes() -> bool {
    true
}
fn keep_alive() -> u16 {
    300
}
fn version() -> u8 {
    4
}
fn one() -> f64 {
    1.0
}
fn patience() -> f64 {
    120.0
}

/// Longest time of anything, and between any two: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Longest topic, filter and client id, before their variables are filled in.
const TEXT_MAX: usize = 60_000;

/// Above 0 and no longer than a year; not NaN either.
fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= SECONDS_MAX
}

/// Longest payload: a packet has to fit the receive buffer.
pub const SIZE_MAX: usize = 64 << 10;

impl Scenario {
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Every scaled group multiplied; at least one client stays. Connect rates stay: it is the rate that a ramp is hard by.
    pub fn scaled(mut self, by: f64) -> Self {
        for group in self.groups.iter_mut().filter(|group| group.scaled) {
            group.count = ((group.count as f64 * by).round() as u64).max(1);
        }
        self
    }

    /// Every measured phase that lasts a given time lasts this one instead.
    pub fn lasting(mut self, seconds: f64) -> Self {
        for phase in self.phases.iter_mut().filter(|phase| phase.measure && phase.seconds.is_some()) {
            phase.seconds = Some(seconds);
        }
        self
    }

    /// The phase with this name lasts so long instead, if it is one that lasts a given time.
    pub fn with_phase_lasting(mut self, name: &str, seconds: f64) -> Result<Self, String> {
        let phase = self.phases.iter_mut().find(|phase| phase.name == name && phase.seconds.is_some());
        phase.ok_or_else(|| format!("no phase {name} that lasts a given time"))?.seconds = Some(seconds);
        Ok(self)
    }

    /// A closed loop in which several receive each message: all of it has to run in one worker, because receivers tell the sender.
    pub fn is_bound_to_one_worker(&self) -> bool {
        self.groups.iter().any(|group| {
            let closed = group.publish.as_ref().is_some_and(|publish| publish.window.is_some());
            closed && self.copies(group) > 1
        })
    }

    pub fn clients(&self) -> u64 {
        self.groups.iter().map(|group| group.count).sum()
    }

    pub fn group(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.name == name)
    }

    /// How many receive each message of a group.
    pub fn copies(&self, group: &Group) -> u32 {
        match group.publish.as_ref().map(|publish| &publish.copies) {
            None => 0,
            Some(Copies::Number(number)) => *number,
            Some(Copies::Group(name)) => self.group(name).map_or(0, |index| self.groups[index].count as u32),
        }
    }

    /// # Errors
    /// What is wrong, with the name of its group or phase.
    pub fn validate(&self) -> Result<(), String> {
        for (index, group) in self.groups.iter().enumerate() {
            let name = &group.name;
            let wrong = |what: &str| Err(format!("group {name}: {what}"));
            if self.group(name) != Some(index) {
                return wrong("the name is used twice");
            }
            if index >= 64 || self.clients() > u64::from(u32::MAX) {
                return wrong("64 groups and 2^32 clients are the most");
            }
            if group.count == 0 {
                return wrong("count is at least 1");
            }
            if group.connect_rate != 0.0 && !is_time(1.0 / group.connect_rate) {
                return wrong("connect_rate is above 0, or 0 for all at once");
            }
            if !matches!(group.version, 4 | 5) {
                return wrong("version is 4 (MQTT 3.1.1) or 5");
            }
            let text = |text: &str| {
                Template::parse(text)?;
                if text.is_empty() || text.len() > TEXT_MAX {
                    return Err(format!("group {name}: topics, filters and client ids have 1 to {TEXT_MAX} bytes"));
                }
                Ok(())
            };
            if let Some(id) = &group.client_id {
                text(id)?;
            }
            for subscribe in &group.subscribe {
                text(&subscribe.filter)?;
                if subscribe.qos > 2 {
                    return wrong("QoS is 0, 1 or 2");
                }
            }
            if let Some(will) = &group.will {
                text(&will.topic)?;
                if will.qos > 2 {
                    return wrong("a will's QoS is 0, 1 or 2");
                }
            }
            let Some(publish) = &group.publish else { continue };
            text(&publish.topic)?;
            if !(publish.share > 0.0 && publish.share <= 1.0) {
                return wrong("share is above 0 and at most 1");
            }
            if !(STAMP_BYTES..=SIZE_MAX).contains(&publish.size) {
                return wrong(&format!("size is {STAMP_BYTES} to {SIZE_MAX} bytes"));
            }
            if publish.json && publish.size < JSON_BYTES_MIN {
                return wrong(&format!("size in JSON is at least {JSON_BYTES_MIN} bytes"));
            }
            if publish.qos > 2 {
                return wrong("QoS is 0, 1 or 2");
            }
            if publish.every_s.is_some() && publish.window.is_some() {
                return wrong("every_s (open loop) and window (closed loop) exclude each other");
            }
            if publish.every_s.is_none() && publish.window.is_none() && publish.messages.is_none() {
                return wrong("publish needs every_s, window or messages");
            }
            if publish.every_s.is_some_and(|seconds| !is_time(seconds)) {
                return wrong("every_s is above 0 and at most a year");
            }
            if publish.window == Some(0) || publish.messages == Some(0) || publish.batch == Some(0) {
                return wrong("window, batch and messages are above 0");
            }
            if publish.window.is_some_and(|window| window > 60_000) {
                return wrong("a window is at most 60,000, less than there are packet ids");
            }
            if let Copies::Group(other) = &publish.copies
                && self.group(other).is_none()
            {
                return wrong(&format!("copies: there is no group {other}"));
            }
        }
        for phase in &self.phases {
            if phase.seconds.is_some_and(|seconds| !is_time(seconds)) || !is_time(phase.patience_s) {
                return Err(format!("phase {}: seconds and patience_s are above 0 and at most a year", phase.name));
            }
            for name in phase.connect.iter().chain(&phase.publish).chain(&phase.reset) {
                self.group(name).ok_or_else(|| format!("phase {}: there is no group {name}", phase.name))?;
            }
            if let Some(search) = &phase.search {
                let wrong = |what: &str| Err(format!("phase {}: search: {what}", phase.name));
                let Some(group) = self.group(&search.group) else { return wrong("there is no such group") };
                if self.groups[group].publish.as_ref().is_none_or(|publish| publish.every_s.is_none()) {
                    return wrong("the group is not open loop");
                }
                let is_factor = search.factor > 1.0 && search.factor <= 1000.0;
                if !is_factor || !phase.measure || phase.seconds.is_none() {
                    return wrong("it needs a factor above 1 (at most 1000) and a measured phase with seconds");
                }
                if !(search.received > 0.0 && search.received <= 1.0) {
                    return wrong("received is above 0 and at most 1");
                }
                if search.bisections > 20 {
                    return wrong("20 bisections are the most");
                }
                if !search.mean_response_ms.into_iter().chain(search.p99_ms).all(|bound| bound > 0.0) {
                    return wrong("bounds are above 0");
                }
            }
            for name in &phase.publish {
                let publish = self.group(name).and_then(|group| self.groups[group].publish.as_ref());
                let publish = publish.ok_or_else(|| format!("phase {}: group {name} has nothing to publish", phase.name))?;
                if phase.seconds.is_none() && publish.messages.is_none() && phase.connect.is_empty() {
                    return Err(format!("phase {}: group {name} has no end: give seconds or messages", phase.name));
                }
            }
        }
        let Check { lost, duplicates, out_of_order, failures, p99_ms, mean_ms, unsent, unacknowledged, .. } = self.check;
        let Check { resident_bytes, unanswered_pings, .. } = self.check;
        let bounds =
            [lost, duplicates, out_of_order, failures, p99_ms, mean_ms, unsent, unacknowledged, resident_bytes, unanswered_pings];
        if !bounds.into_iter().all(|bound| bound >= 0.0) {
            return Err("check: bounds are numbers from 0, or inf for any number".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        description = "d"
        source = "s"
        [[group]]
        name = "p"
        count = 1000
        connect_rate = 100
        publish = { topic = "t/{i}", size = 16, every_s = 1, copies = "s" }
        [[group]]
        name = "s"
        count = 500
        scaled = false
        [[phase]]
        name = "m"
        publish = ["p"]
        seconds = 60
        measure = true
    "#;

    #[test]
    fn scale_changes_the_counts_of_scaled_groups_only() {
        let scenario = Scenario::parse(SMALL).unwrap().scaled(0.01).lasting(2.0);
        assert_eq!((scenario.groups[0].count, scenario.groups[1].count), (10, 500));
        assert_eq!(scenario.copies(&scenario.groups[0]), 500);
        assert_eq!(scenario.phases[0].seconds, Some(2.0));
    }

    #[test]
    fn one_phase_can_be_made_to_last_longer() {
        let scenario = Scenario::parse(SMALL).unwrap();
        assert_eq!(scenario.clone().with_phase_lasting("m", 7.0).unwrap().phases[0].seconds, Some(7.0));
        assert!(scenario.with_phase_lasting("n", 7.0).unwrap_err().contains("no phase n"));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, word) in [
            ("size = 16", "size = 15", "size"),
            ("size = 16", "size = 16, json = true", "in JSON"),
            ("every_s = 1", "every_s = 1, window = 3", "exclude"),
            ("publish = [\"p\"]", "publish = [\"s\"]", "nothing to publish"),
            ("publish = [\"p\"]", "publish = [\"q\"]", "no group q"),
            ("scaled = false", "scald = false", "scald"),
            ("copies = \"s\"", "copies = \"z\"", "no group z"),
            ("seconds = 60", "", "no end"),
            ("t/{i}", "t/{x}", "{x}"),
            ("topic = \"t/{i}\"", "topic = \"\"", "bytes"),
            ("every_s = 1", "every_s = nan", "every_s"),
            ("every_s = 1", "every_s = inf", "every_s"),
            ("every_s = 1", "every_s = 1, share = 1.5", "share"),
            ("connect_rate = 100", "connect_rate = -1", "connect_rate"),
            ("connect_rate = 100", "connect_rate = nan", "connect_rate"),
            ("connect_rate = 100", "connect_rate = 1e-12", "connect_rate"),
            ("count = 500", "count = 0", "count"),
            ("count = 500", "count = 500\nwill = { topic = \"w\", qos = 7 }", "will"),
            ("seconds = 60", "seconds = inf", "seconds"),
            ("seconds = 60", "seconds = 0", "seconds"),
            ("measure = true", "measure = true\n[check]\nlost = nan", "check"),
        ] {
            let error = Scenario::parse(&SMALL.replace(from, to)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}

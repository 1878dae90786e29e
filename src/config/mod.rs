//! The configuration: flags as they were written and the file they name, resolved into one [`Config`] that has no fault. The
//! command line beats the file, the file beats the defaults; the environment is not read, but for what delays decisions in tests
//! (`wiring`).
//!
//! Where to find what: `knobs`, `sink_knobs`, `rule_knobs` (every setting, in tables), `table`, `list` (what a table is),
//! `setting` (a value of each type) · `file` (reading TOML), `draft`, `spot` (where what was written) · `clash`, `sinks`,
//! `actions` (what is wrong with several settings, a sink, a rule) · `error` · `reference` (`config-reference`).

mod actions;
mod clash;
mod constants;
mod draft;
mod error;
mod file;
pub mod knobs;
mod list;
mod reference;
mod rule_knobs;
mod setting;
mod sink_knobs;
#[cfg(test)]
mod sink_tests;
mod sinks;
mod spot;
mod table;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, ConfigErrors, Place};
pub use reference::reference;
pub use setting::{Choice, group_digits, show_size};

use crate::ids::CORES_MAX;
use crate::limits::{DropPolicy, Limits};
use crate::rules::PlannedRule;
use crate::sinks::options::{ActionOptions, SinkKind, SinkOptions, SourceOptions};
use draft::{Draft, Listed, Origin, Spots};
use setting::{Domain, Setting};
use spot::Spot;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml_edit::Value;

/// What the broker runs with.
#[derive(Clone, Debug)]
pub struct Config {
    pub limits: Limits,
    /// At least one, with distinct names and addresses.
    pub listeners: Vec<Listener>,
    pub shards: Shards,
    /// See [`Config::admits_anonymous`].
    pub allow_anonymous: Option<bool>,
    pub shutdown_s: u32,
    /// 0 means that no watchdog runs.
    pub stall_s: u32,
    /// 0 means that there are no `$SYS` topics.
    pub sys_interval_s: u32,
    pub log_level: LogLevel,
    pub log_format: LogFormat,
    /// 0 means that there is no periodic line.
    pub log_interval_s: u32,
    /// The CPU of the sink core; `None` is the last one that no shard needs, if there is one.
    pub sink_core: Option<u16>,
    /// What rules see as `node`; empty means the host's name.
    pub node: String,
    /// At most 255, with distinct names.
    pub sinks: Vec<SinkOptions>,
    /// With distinct names.
    pub sources: Vec<SourceOptions>,
    /// With distinct names.
    pub rules: Vec<PlannedRule>,
    /// The actions of all rules that lead to sinks, each at the place of its id.
    pub actions: Vec<ActionOptions>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            listeners: vec![Listener::default()],
            shards: Shards::Auto,
            allow_anonymous: None,
            shutdown_s: 10,
            stall_s: 30,
            sys_interval_s: 10,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
            log_interval_s: 60,
            sink_core: None,
            node: String::new(),
            sinks: Vec::new(),
            sources: Vec::new(),
            rules: Vec::new(),
            actions: Vec::new(),
        }
    }
}

impl Config {
    /// Whether clients of this listener may connect without authentication: as the listener says, or else the broker, or else only
    /// on a loopback address.
    pub fn admits_anonymous(&self, listener: &Listener) -> bool {
        listener.allow_anonymous.or(self.allow_anonymous).unwrap_or_else(|| listener.is_loopback())
    }

    /// Whether anything is configured that needs a sink core.
    pub fn has_sink_core(&self) -> bool {
        !self.sinks.is_empty() || !self.sources.is_empty()
    }
}

/// One address that clients connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The name in logs; once resolved, never empty.
    pub name: String,
    /// With port 0 the kernel chooses a free port.
    pub address: SocketAddr,
    pub allow_anonymous: Option<bool>,
    pub backlog: u16,
    pub tcp_nodelay: bool,
    /// 0 leaves the kernel's default.
    pub tcp_user_timeout_ms: u32,
    /// Idle time before the first probe; 0 sends none.
    pub tcp_keepalive_s: u32,
    /// 0 leaves both buffers to the kernel's own tuning.
    pub receive_buffer_bytes: u32,
    pub send_buffer_bytes: u32,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            name: String::new(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1883)),
            allow_anonymous: None,
            backlog: 65_535,
            tcp_nodelay: true,
            tcp_user_timeout_ms: 0,
            tcp_keepalive_s: 300,
            receive_buffer_bytes: 0,
            send_buffer_bytes: 0,
        }
    }
}

impl Listener {
    pub fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// How many shards run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shards {
    /// One per core of the process's affinity mask, at most [`CORES_MAX`].
    Auto,
    /// 1 to [`CORES_MAX`].
    Exactly(u16),
}

impl FromStr for Shards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) if (1..=CORES_MAX).contains(&usize::from(number)) => Ok(Shards::Exactly(number)),
            _ if text == "auto" => Ok(Shards::Auto),
            _ => Err(format!("expected \"auto\" or a whole number from 1 to {CORES_MAX}")),
        }
    }
}

impl Shards {
    fn number(self) -> Option<u16> {
        match self {
            Shards::Auto => None,
            Shards::Exactly(number) => Some(number),
        }
    }
}

impl Setting for Shards {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        let mut number = None;
        number.set(value, domain)?;
        *self = number.map_or(Shards::Auto, Shards::Exactly);
        Ok(())
    }

    fn to_toml(&self, domain: Domain) -> Option<String> {
        self.number().to_toml(domain)
    }

    fn expects(&self, domain: Domain) -> String {
        self.number().expects(domain)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Choice for LogLevel {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("error", Self::Error), ("warn", Self::Warn), ("info", Self::Info), ("debug", Self::Debug), ("trace", Self::Trace)];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// With time stamps, in colour on a terminal.
    Text,
    /// For journald: neither.
    Journal,
}

impl Choice for LogFormat {
    const CHOICES: &'static [(&'static str, Self)] = &[("text", Self::Text), ("journal", Self::Journal)];
}

impl Choice for DropPolicy {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("newest", Self::Newest), ("oldest", Self::Oldest), ("disconnect", Self::Disconnect)];
}

/// The flags of `corelane run` as they were written.
#[derive(Clone, PartialEq, Eq, Debug, Default, clap::Args)]
pub struct Flags {
    /// Read the configuration from FILE (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Listen on ADDR (IP:PORT) instead of the listeners of the file; may be repeated. Port 0 takes a free port.
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    pub listen: Vec<SocketAddr>,

    /// Number of shards, or "auto" for one per core.
    #[arg(long, value_name = "N")]
    pub shards: Option<Shards>,

    /// The least severe lines that are logged: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", value_parser = parse_level)]
    pub log: Option<LogLevel>,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    setting::parse_address(text).map_err(|_| format!("expected {}", setting::ADDRESS_EXPECTS))
}

fn parse_level(text: &str) -> Result<LogLevel, String> {
    LogLevel::parse_choice(text).map_err(|_| format!("expected {}", LogLevel::choice_expects()))
}

/// Reads the file that the flags name and applies the flags to it. Every fault found is reported, not only the first.
pub fn resolve(flags: &Flags) -> Result<Config, ConfigErrors> {
    let text = match &flags.config {
        Some(path) => Some((path.as_path(), read_text(path)?)),
        None => None,
    };
    resolve_text(text.as_ref().map(|(path, text)| (*path, text.as_str())), flags)
}

fn read_text(path: &Path) -> Result<String, ConfigErrors> {
    std::fs::read_to_string(path).map_err(|error| {
        ConfigErrors(vec![ConfigError {
            place: Place::WholeFile { path: path.to_owned() },
            what: format!("the configuration cannot be read: {error}"),
            fix: "name a readable TOML file in UTF-8, or none to run with the defaults".into(),
        }])
    })
}

/// [`resolve`] without the file system: the file is given as its path and text.
pub fn resolve_text(file: Option<(&Path, &str)>, flags: &Flags) -> Result<Config, ConfigErrors> {
    let (mut draft, mut errors) = match file {
        Some((path, text)) => file::read(path, text),
        None => (Draft::empty(Place::Defaults), Vec::new()),
    };
    if draft.listeners.is_empty() {
        let origin = Origin { whole: draft.otherwise.clone(), spots: Spots::new() };
        draft.listeners.push(Listed { value: Listener::default(), origin });
    } else {
        // A listener without a usable address has been reported; compared with the others it would only add noise.
        draft.listeners.retain(|listener| listener.origin.written("address").is_some());
    }
    apply_flags(flags, &mut draft);
    for listener in &mut draft.listeners {
        if listener.value.name.is_empty() {
            listener.value.name = listener.value.address.to_string();
        }
    }
    clash::find(&mut draft, &mut errors);
    let config = assemble(draft, &mut errors);
    if errors.is_empty() {
        Ok(config)
    } else {
        errors.sort_by_key(|error| error.place.order());
        Err(ConfigErrors(errors))
    }
}

/// Lays what is in lists beside the rest.
fn assemble(mut draft: Draft, errors: &mut Vec<ConfigError>) -> Config {
    let sinks = sinks::take(&mut draft);
    sinks::check(&sinks, errors);
    sinks::check_sources(&draft.sources, &draft.config.limits, errors);
    let plan = actions::plan(&draft.rules, &sinks, &draft.config.limits, errors);
    let mut config = draft.config;
    config.listeners = draft.listeners.into_iter().map(|listener| listener.value).collect();
    config.sources = draft.sources.into_iter().map(|source| source.value).collect();
    for (number, listed) in sinks.into_iter().enumerate() {
        let Listed { value: mut sink, .. } = listed;
        sink.buffer.when_full = actions::when_full(sink.when_full, number, &plan.actions);
        if let SinkKind::Mongodb(options) = &mut sink.options
            && plan.upserting.iter().any(|sink| usize::from(*sink) == number)
        {
            options.batches_max = 1;
        }
        config.sinks.push(SinkOptions { name: sink.name, buffer: sink.buffer, kind: sink.options });
    }
    config.rules = plan.rules;
    config.actions = plan.actions;
    config
}

fn apply_flags(flags: &Flags, draft: &mut Draft) {
    if !flags.listen.is_empty() {
        // A listener of the file that the command line names again keeps its other settings.
        let of_file = std::mem::take(&mut draft.listeners);
        for address in &flags.listen {
            let flag = format!("--listen {address}");
            let known = of_file.iter().find(|listener| listener.value.address == *address).cloned();
            let mut listener = known.unwrap_or_else(|| Listed {
                value: Listener { address: *address, ..Listener::default() },
                origin: Origin { whole: Place::Flag(flag.clone()), spots: Spots::new() },
            });
            listener.origin.spots.insert("address", Spot::of_flag(&flag));
            draft.listeners.push(listener);
        }
    }
    if let Some(shards) = flags.shards {
        draft.config.shards = shards;
        draft.set_by_flag("broker", "shards", "--shards");
    }
    if let Some(level) = flags.log {
        draft.config.log_level = level;
        draft.set_by_flag("log", "level", "--log");
    }
}

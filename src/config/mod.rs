//! The configuration: flags as they were written and the file they name, resolved into one [`Config`] that has no fault. The command
//! line beats the file, the file beats the defaults; the environment is not read.

mod clash;
mod error;
mod file;
pub mod knobs;
mod reference;
mod setting;

pub use error::{ConfigError, ConfigErrors, Place};
pub use reference::reference;
pub use setting::{Choice, group_digits, show_size};

use crate::ids::CORES_MAX;
use crate::limits::{DropPolicy, Limits};
use file::Origins;
use setting::{Domain, Setting};
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
        }
    }
}

impl Config {
    /// Whether clients of this listener may connect without authentication: as the listener says, or else the broker, or else only
    /// on a loopback address.
    pub fn admits_anonymous(&self, listener: &Listener) -> bool {
        listener.allow_anonymous.or(self.allow_anonymous).unwrap_or_else(|| listener.is_loopback())
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

impl Setting for Shards {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        if value.as_str() == Some("auto") {
            *self = Shards::Auto;
            return Ok(());
        }
        let mut number = 0_u16;
        number.set(value, domain)?;
        *self = Shards::Exactly(number);
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(match self {
            Shards::Auto => "\"auto\"".into(),
            Shards::Exactly(number) => number.to_string(),
        })
    }

    fn expects(&self, domain: Domain) -> String {
        format!("\"auto\" or {}", 0_u16.expects(domain))
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
    let (mut config, mut origins, mut errors) = match file {
        Some((path, text)) => file::read(path, text),
        None => (Config::default(), Origins::defaults(), Vec::new()),
    };
    apply_flags(flags, &mut config, &mut origins);
    for listener in &mut config.listeners {
        if listener.name.is_empty() {
            listener.name = listener.address.to_string();
        }
    }
    errors.extend(clash::find(&mut config, &origins));
    if errors.is_empty() {
        Ok(config)
    } else {
        errors.sort_by_key(|error| error.place.order());
        Err(ConfigErrors(errors))
    }
}

fn apply_flags(flags: &Flags, config: &mut Config, origins: &mut Origins) {
    if !flags.listen.is_empty() {
        // A listener of the file that the command line names again keeps its other settings.
        let of_file = std::mem::take(&mut config.listeners);
        config.listeners = flags
            .listen
            .iter()
            .map(|address| {
                let known = of_file.iter().find(|listener| listener.address == *address).cloned();
                known.unwrap_or_else(|| Listener { address: *address, ..Listener::default() })
            })
            .collect();
        origins.listeners_from_flags(&flags.listen);
    }
    if let Some(shards) = flags.shards {
        config.shards = shards;
        origins.set("broker.shards", Place::Flag("--shards".into()));
    }
    if let Some(level) = flags.log {
        config.log_level = level;
        origins.set("log.level", Place::Flag("--log".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_file(text: &str) -> Result<Config, ConfigErrors> {
        resolve_text(Some((Path::new("corelane.toml"), text)), &Flags::default())
    }

    #[test]
    fn without_flags_and_file_there_is_one_loopback_listener_that_admits_anonymous_clients() {
        let config = resolve_text(None, &Flags::default()).unwrap();
        let [listener] = &config.listeners[..] else { panic!("one listener") };
        assert_eq!((listener.name.as_str(), listener.address.to_string().as_str()), ("127.0.0.1:1883", "127.0.0.1:1883"));
        assert!(config.admits_anonymous(listener));
        assert_eq!((config.shards, config.shutdown_s, config.stall_s), (Shards::Auto, 10, 30));
        assert_eq!((config.sys_interval_s, config.log_interval_s, config.log_level), (10, 60, LogLevel::Info));
        assert_eq!((listener.backlog, listener.tcp_nodelay), (65_535, true));
    }

    #[test]
    fn the_command_line_beats_the_file() {
        let text = "[broker]\nshards = 3\n[log]\nlevel = \"warn\"\n[[listener]]\naddress = \"127.0.0.1:2000\"\n\
                    [[listener]]\naddress = \"127.0.0.1:2001\"\nbacklog = 7\n";
        let file = Some((Path::new("corelane.toml"), text));
        let config = resolve_text(file, &Flags::default()).unwrap();
        assert_eq!((config.shards, config.log_level, config.listeners.len()), (Shards::Exactly(3), LogLevel::Warn, 2));
        let flags = Flags {
            config: None,
            listen: vec!["127.0.0.1:0".parse().unwrap(), "127.0.0.1:2001".parse().unwrap()],
            shards: Some(Shards::Auto),
            log: Some(LogLevel::Trace),
        };
        let config = resolve_text(file, &flags).unwrap();
        assert_eq!((config.shards, config.log_level), (Shards::Auto, LogLevel::Trace));
        let ports: Vec<u16> = config.listeners.iter().map(|listener| listener.address.port()).collect();
        assert_eq!((ports, config.listeners[0].backlog, config.listeners[1].backlog), (vec![0, 2001], 65_535, 7));
    }

    #[test]
    fn a_listener_beyond_loopback_needs_allow_anonymous() {
        let wide = "[[listener]]\naddress = \"0.0.0.0:1883\"\n";
        let errors = resolve_file(wide).unwrap_err();
        assert_eq!(errors.0.len(), 1);
        let message = errors.to_string();
        assert!(message.starts_with("corelane.toml:2:11: error: "), "{message}");
        assert!(message.contains("no authentication") && message.contains("allow_anonymous = true"), "{message}");

        assert!(resolve_file(&format!("{wide}allow_anonymous = true\n")).is_ok());
        assert!(resolve_file(&format!("[broker]\nallow_anonymous = true\n{wide}")).is_ok());
        assert!(resolve_file(&format!("[broker]\nallow_anonymous = true\n{wide}allow_anonymous = false\n")).is_err());
        for loopback in ["127.0.0.1:1883", "127.9.9.9:1883", "[::1]:1883", "[::ffff:127.0.0.1]:1883"] {
            assert!(resolve_file(&format!("[[listener]]\naddress = \"{loopback}\"\n")).is_ok(), "{loopback}");
        }
        for wide in ["[::]:1883", "10.0.0.1:1883", "[::ffff:10.0.0.1]:1883"] {
            assert!(resolve_file(&format!("[[listener]]\naddress = \"{wide}\"\n")).is_err(), "{wide}");
        }
    }

    #[test]
    fn the_refusal_of_a_flag_names_the_flag() {
        let flags = Flags { listen: vec!["0.0.0.0:1883".parse().unwrap()], ..Flags::default() };
        let message = resolve_text(None, &flags).unwrap_err().to_string();
        assert!(message.starts_with("--listen 0.0.0.0:1883: error: "), "{message}");
    }

    #[test]
    fn a_listener_that_admits_nobody_is_refused() {
        let message = resolve_file("[broker]\nallow_anonymous = false\n").unwrap_err().to_string();
        assert!(message.starts_with("corelane.toml:2:19: error: "), "{message}");
        assert!(message.contains("nobody"), "{message}");
    }

    #[test]
    fn a_missing_file_is_one_clear_error() {
        let flags = Flags { config: Some("/nonexistent/corelane.toml".into()), ..Flags::default() };
        let message = resolve(&flags).unwrap_err().to_string();
        assert!(message.starts_with("/nonexistent/corelane.toml: error: the configuration cannot be read"), "{message}");
        assert_eq!(message.lines().count(), 1);
    }

    #[test]
    fn shards_are_auto_or_a_number_of_cores() {
        assert_eq!("auto".parse(), Ok(Shards::Auto));
        assert_eq!("64".parse(), Ok(Shards::Exactly(64)));
        for text in ["0", "65", "-1", "Auto", "", "1.5"] {
            assert!(text.parse::<Shards>().is_err(), "{text}");
        }
    }
}

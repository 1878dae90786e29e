//! The start of the process: the log, and the one screen that says what runs, where, and within which limits. The screen is made from
//! plain data, [`HostFacts`], so that it is tested without a kernel.

use crate::config::{Choice, Config, LogFormat, LogLevel, group_digits, show_size};
use crate::runtime::probe::files_beside_connections;
use crate::sinks::options::Confirm;
use std::fmt::Write;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use tracing_subscriber::filter::LevelFilter;

/// What the kernel and the runtime say, and what the broker got from them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostFacts {
    /// The kernel's release, such as `6.1.0-28-amd64`.
    pub kernel: String,
    /// The features of io_uring in use, in the kernel's words.
    pub ring_features: Vec<String>,
    /// The core that each shard is pinned to.
    pub shard_cores: Vec<usize>,
    /// The core that the sink core is pinned to; `None`: any of the allowed ones.
    pub sink_core: Option<usize>,
    /// Cores in the process's affinity mask.
    pub cores_allowed: usize,
    /// The address of each listener of the configuration, in its order, with the port that the kernel chose.
    pub listeners: Vec<SocketAddr>,
    pub files: Files,
    /// Memory that the process may lock, in bytes; `None` without a limit.
    pub memlock_bytes: Option<u64>,
    /// The kernel's own limit of a listener's backlog (net.core.somaxconn).
    pub backlog_max: Option<u64>,
    /// Memory of the host, or of the control group if that is less, in bytes.
    pub memory_bytes: Option<NonZeroU64>,
}

/// The limit of open files, which is one per connection and a few more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Files {
    /// The soft limit as the process found it.
    pub soft_at_start: u64,
    /// The soft limit now: raised to the hard one.
    pub soft: u64,
    pub hard: u64,
    /// Open files of the whole host (fs.file-max).
    pub host_max: Option<u64>,
}

impl HostFacts {
    /// Adds what /proc and the control group say; what cannot be read stays unknown.
    pub fn read_proc(&mut self) {
        let number = |path: &str| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        self.kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        self.backlog_max = number("/proc/sys/net/core/somaxconn");
        self.files.host_max = number("/proc/sys/fs/file-max");
        let host = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_total_bytes(&text));
        let group = number("/sys/fs/cgroup/memory.max");
        self.memory_bytes = host.into_iter().chain(group).min().and_then(NonZeroU64::new);
    }

    /// Connections that the limit of open files leaves room for, beside those that the process and each shard hold: logs, rings,
    /// doorbells, listeners.
    fn connections_by_files(&self) -> u64 {
        let own = files_beside_connections(self.shard_cores.len());
        self.files.soft.min(self.files.host_max.unwrap_or(u64::MAX)).saturating_sub(own)
    }
}

/// `MemTotal` of /proc/meminfo.
fn memory_total_bytes(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The start screen: facts, then warnings, each with its fix. Ends with a newline.
pub fn screen(config: &Config, facts: &HostFacts) -> String {
    let mut text = format!("Corelane {} on Linux {}\n", env!("CARGO_PKG_VERSION"), facts.kernel);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    line("io_uring", &facts.ring_features.join(", "));
    line("shards", &shards(facts));
    for (listener, address) in config.listeners.iter().zip(&facts.listeners) {
        let name = if listener.name == listener.address.to_string() { String::new() } else { format!(" ({})", listener.name) };
        let anonymous = if config.admits_anonymous(listener) { "anonymous clients allowed" } else { "anonymous clients refused" };
        line("listening on", &format!("{address}{name}, {anonymous}"));
    }
    if !config.rules.is_empty() {
        line("rules", &rules(config));
    }
    for (number, sink) in config.sinks.iter().enumerate() {
        line("sink", &format!("{}: {}; {}", sink.name, sink.kind.place(), buffer(config, number)));
    }
    for source in &config.sources {
        line("source", &format!("{}: {} of Kafka at {}", source.name, source.topics, source.kafka.brokers));
    }
    if config.has_sink_core() {
        line("sink core", &facts.sink_core.map_or("on any allowed core".into(), |core| format!("on core {core}")));
    }
    line("connections", &connections(config, facts));
    line("files", &files(&facts.files));
    line("memlock", &facts.memlock_bytes.map_or("no limit".into(), show_size));
    line("memory", &memory(config, facts));
    line("log", config.log_level.word());
    for warning in warnings(config, facts) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn shards(facts: &HostFacts) -> String {
    let cores: Vec<String> = facts.shard_cores.iter().map(usize::to_string).collect();
    let plural = if cores.len() == 1 { "" } else { "s" };
    format!("{} on core{plural} {} of {} allowed", cores.len(), cores.join(", "), facts.cores_allowed)
}

/// How many rules, and the names of the first.
fn rules(config: &Config) -> String {
    const NAMED: usize = 8;
    let names: Vec<&str> = config.rules.iter().take(NAMED).map(|rule| &*rule.name).collect();
    let more = if config.rules.len() > NAMED { ", …" } else { "" };
    format!("{}: {}{more}", config.rules.len(), names.join(", "))
}

/// Where records wait for the sink of this number, and what that means for them.
fn buffer(config: &Config, number: usize) -> String {
    let buffer = &config.sinks[number].buffer;
    if !buffer.disk_path.is_empty() {
        return format!("up to {} wait in {}", show_size(buffer.disk_bytes_max), buffer.disk_path);
    }
    let queues = config.actions.iter().any(|action| usize::from(action.sink) == number && action.confirm == Confirm::Queued);
    let risk = if queues { ", and what is only queued is lost if the process is killed" } else { "" };
    format!("up to {} wait in memory{risk}", show_size(buffer.memory_bytes_max))
}

fn connections(config: &Config, facts: &HostFacts) -> String {
    let (by_files, by_config) = (facts.connections_by_files(), config.limits.connections_max);
    let (least, by) = if by_files < by_config { (by_files, "open files") } else { (by_config, "limits.connections_max") };
    format!("up to {}, by {by}", group_digits(least, ','))
}

fn files(files: &Files) -> String {
    let soft = group_digits(files.soft, ',');
    let raised = if files.soft > files.soft_at_start {
        format!(", raised from {} to the hard limit", group_digits(files.soft_at_start, ','))
    } else if files.soft < files.hard {
        format!(", below the hard limit of {}", group_digits(files.hard, ','))
    } else {
        ", the hard limit".into()
    };
    soft + &raised
}

fn memory(config: &Config, facts: &HostFacts) -> String {
    let host =
        facts.memory_bytes.map_or(String::new(), |bytes| format!("; the host has {} MiB", group_digits(bytes.get() >> 20, ',')));
    match config.limits.memory_max_bytes {
        0 => format!("no limit{host}"),
        bytes => format!("{}, by limits.memory_max_bytes{host}", show_size(bytes)),
    }
}

/// What will not work as configured, each with why and the fix.
pub fn warnings(config: &Config, facts: &HostFacts) -> Vec<String> {
    let mut warnings = Vec::new();
    let (by_files, by_config) = (facts.connections_by_files(), config.limits.connections_max);
    if by_files < by_config {
        let needed = by_config.saturating_add(facts.files.soft - by_files.min(facts.files.soft));
        let host_is_less = facts.files.host_max.is_some_and(|host| host < facts.files.soft);
        let fix = if host_is_less { format!("sysctl -w fs.file-max={needed}") } else { files_fix(needed) };
        warnings.push(format!(
            "open files allow {} connections, limits.connections_max says {}: lower the latter, or {fix}",
            group_digits(by_files, ','),
            group_digits(by_config, ',')
        ));
    }
    if let Some(kernel_max) = facts.backlog_max
        && let Some(wanted) = config.listeners.iter().map(|listener| u64::from(listener.backlog)).max()
        && kernel_max < wanted
    {
        warnings.push(format!(
            "the kernel cuts listener.backlog from {wanted} to {kernel_max}, so a burst of new connections waits for retries: \
             sysctl -w net.core.somaxconn={wanted}"
        ));
    }
    if facts.shard_cores.len() > facts.cores_allowed {
        warnings.push(format!(
            "{} shards share {} cores: set broker.shards to \"auto\" or at most {}",
            facts.shard_cores.len(),
            facts.cores_allowed,
            facts.cores_allowed
        ));
    }
    if let Some(memory) = facts.memory_bytes
        && config.limits.memory_max_bytes > memory.get()
    {
        warnings.push(format!(
            "limits.memory_max_bytes is {}, the host or its control group has {} MiB: the kernel would kill the broker before it \
             refuses anything; set it lower",
            show_size(config.limits.memory_max_bytes),
            group_digits(memory.get() >> 20, ',')
        ));
    }
    for (listener, address) in config.listeners.iter().zip(&facts.listeners) {
        if config.admits_anonymous(listener) && !listener.is_loopback() {
            warnings.push(format!(
                "anyone who reaches {address} may publish and subscribe (allow_anonymous = true): keep strangers out by the network"
            ));
        }
    }
    warnings
}

/// How to raise the limit of open files to `needed`; the kernel's ceiling for a process is fs.nr_open, 1,048,576 by default.
pub fn files_fix(needed: u64) -> String {
    let ceiling = if needed > 1 << 20 { format!("sysctl -w fs.nr_open={needed} and ") } else { String::new() };
    format!(
        "{ceiling}LimitNOFILE={needed} in the systemd unit (docker run --ulimit nofile={needed}:{needed}; ulimit -Hn {needed} as root)"
    )
}

/// Sends log lines to standard error from now on. Must be called once.
pub fn start_log(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Journal => lines.with_ansi(false).without_time().init(),
    }
}

/// From now on a panic of any thread, once reported, ends the process, in every build profile: a shard that dies alone would leave its
/// clients unserved and its peers waiting.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Listener, resolve_text};

    fn config() -> Config {
        resolve_text(None, &Flags::default()).unwrap()
    }

    fn facts() -> HostFacts {
        HostFacts {
            kernel: "6.1.0".into(),
            ring_features: vec!["SINGLE_ISSUER".into(), "DEFER_TASKRUN".into()],
            shard_cores: vec![2, 3],
            sink_core: None,
            cores_allowed: 4,
            listeners: vec!["127.0.0.1:1883".parse().unwrap()],
            files: Files { soft_at_start: 1024, soft: 2_000_000, hard: 2_000_000, host_max: Some(3_000_000) },
            memlock_bytes: Some(8 << 20),
            backlog_max: Some(65_535),
            memory_bytes: NonZeroU64::new(64 << 30),
        }
    }

    #[test]
    fn the_screen_says_what_runs_where_and_within_which_limits() {
        let expected = format!(
            "Corelane {} on Linux 6.1.0
  io_uring      SINGLE_ISSUER, DEFER_TASKRUN
  shards        2 on cores 2, 3 of 4 allowed
  listening on  127.0.0.1:1883, anonymous clients allowed
  connections   up to 1,000,000, by limits.connections_max
  files         2,000,000, raised from 1,024 to the hard limit
  memlock       8 MiB
  memory        no limit; the host has 65,536 MiB
  log           info
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(screen(&config(), &facts()), expected);
    }

    #[test]
    fn the_screen_names_rules_sinks_and_sources_and_what_a_kill_would_lose() {
        let text = r#"
[[kafka]]
name = "kafka"
brokers = "k:9092"
[[file]]
name = "rows"
path = "rows.jsonl"
disk_path = "waiting"
[[kafka_source]]
name = "commands"
brokers = "k:9092"
topics = "to-vehicles"
[[rule]]
name = "telemetry"
sql = 'SELECT * FROM "t/#"'
action = [{ sink = "kafka", topic = "t" }, { sink = "rows" }]
"#;
        let mut facts = facts();
        facts.sink_core = Some(3);
        let screen = |text: &str, facts: &HostFacts| {
            let config =
                resolve_text(Some(("c.toml".as_ref(), text)), &Flags::default()).unwrap_or_else(|errors| panic!("{errors}"));
            screen(&config, facts)
        };
        let queued = screen(text, &facts);
        assert!(
            queued.contains(
                "
  rules         1: telemetry
  sink          kafka: Kafka at k:9092; up to 64 MiB wait in memory, and what is only queued is lost if the process is killed
  sink          rows: file rows.jsonl; up to 1 GiB wait in waiting
  source        commands: to-vehicles of Kafka at k:9092
  sink core     on core 3
"
            ),
            "{queued}"
        );
        facts.sink_core = None;
        let delivered = screen(&text.replace("topic = \"t\"", "topic = \"t\", ack = \"delivered\""), &facts);
        assert!(delivered.contains("; up to 64 MiB wait in memory\n"), "{delivered}");
        assert!(delivered.contains("  sink core     on any allowed core\n"), "{delivered}");
    }

    #[test]
    fn too_few_files_are_warned_of_with_the_number_that_is_needed() {
        let mut facts = facts();
        facts.files = Files { soft_at_start: 20_000, soft: 20_000, hard: 20_000, host_max: None };
        let warnings = warnings(&config(), &facts);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("open files allow 19,904 connections"), "{}", warnings[0]);
        assert!(warnings[0].contains("LimitNOFILE=1000096"), "{}", warnings[0]);
        assert!(screen(&config(), &facts).contains("connections   up to 19,904, by open files"));
    }

    #[test]
    fn the_host_limit_of_files_is_the_one_to_raise_where_it_is_the_least() {
        let mut facts = facts();
        facts.files.host_max = Some(100_000);
        assert!(warnings(&config(), &facts)[0].contains("sysctl -w fs.file-max="));
    }

    #[test]
    fn a_cut_backlog_too_many_shards_too_much_memory_and_open_doors_are_warned_of() {
        let mut config = config();
        let mut facts = facts();
        assert_eq!(warnings(&config, &facts), Vec::<String>::new());
        facts.backlog_max = Some(4096);
        facts.cores_allowed = 1;
        config.limits.memory_max_bytes = 65 << 30;
        config.allow_anonymous = Some(true);
        config.listeners = vec![Listener { address: "0.0.0.0:1883".parse().unwrap(), ..Listener::default() }];
        facts.listeners = vec!["0.0.0.0:1883".parse().unwrap()];
        let warnings = warnings(&config, &facts);
        for (warning, part) in
            warnings.iter().zip(["net.core.somaxconn=65535", "broker.shards", "memory_max_bytes", "0.0.0.0:1883"])
        {
            assert!(warning.contains(part), "{warning}");
        }
        assert_eq!(warnings.len(), 4, "{warnings:?}");
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(memory_total_bytes("MemTotal:       24676628 kB\nMemFree: 1 kB\n"), Some(24_676_628 * 1024));
        assert_eq!(memory_total_bytes("nothing"), None);
    }
}

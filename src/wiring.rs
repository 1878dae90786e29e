//! From the configuration to the runtime's options, and from what the runtime found to the start screen's facts and exit codes.

use crate::boot::{Files, HostFacts};
use crate::cli::exit;
use crate::config::{Config, Shards};
use crate::runtime::probe::ProbeError;
use crate::runtime::{Bound, ListenerOptions, RuntimeError, RuntimeOptions, ShardCount, StartSinks};
use crate::shard::{Gate, TestDelays};
use crate::sinks::options::BufferOptions;
use crate::sinks::{self, CoreOptions, gate_bytes_max};
use std::io;
use std::sync::Arc;

/// Set to `ONE_IN:MAX_MS` it delays that share of decisions about CONNECT, SUBSCRIBE and PUBLISH at random: only for tests of parking.
const TEST_DELAYS: &str = "CORELANE_TEST_DELAYS";

pub fn runtime_options(config: &Config) -> RuntimeOptions {
    let listener = |listener: &crate::config::Listener| ListenerOptions {
        name: listener.name.clone(),
        address: listener.address,
        backlog: u32::from(listener.backlog),
        nodelay: listener.tcp_nodelay,
        keepalive_s: listener.tcp_keepalive_s,
        user_timeout_ms: listener.tcp_user_timeout_ms,
        receive_buffer_bytes: listener.receive_buffer_bytes,
        send_buffer_bytes: listener.send_buffer_bytes,
    };
    RuntimeOptions {
        limits: Arc::new(config.limits.clone()),
        listeners: config.listeners.iter().map(listener).collect(),
        shards: match config.shards {
            Shards::Auto => ShardCount::Auto,
            Shards::Exactly(count) => ShardCount::N(usize::from(count)),
        },
        delays: test_delays(),
        shutdown_s: u64::from(config.shutdown_s),
        stall_s: u64::from(config.stall_s),
        sys_interval_s: u64::from(config.sys_interval_s),
        log_interval_s: u64::from(config.log_interval_s),
        rules: config.rules.iter().cloned().collect(),
        node: node(config),
    }
}

/// What starts the sink core; `None`: nothing is configured that needs one.
pub fn start_sinks(config: &Config, bound: &Bound) -> Option<StartSinks> {
    if !config.has_sink_core() {
        return None;
    }
    let (sinks, actions, sources) = (config.sinks.clone(), config.actions.clone(), config.sources.clone());
    let cpu = sink_cpu(config, &bound.host.cpus, bound.cpus.len());
    let allowed = check_sink_cpu(config, &bound.host.cpus);
    let limits = Arc::new(config.limits.clone());
    Some(Box::new(move |end, globals, hasher| {
        allowed.map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, what))?;
        let options = CoreOptions { sinks, actions, sources, globals, hasher, limits, cpu };
        Ok(Arc::new(sinks::start(end, options)?))
    }))
}

/// The room before each sink, by its number.
pub fn gates(config: &Config) -> Vec<Gate> {
    let gate = |buffer: &BufferOptions| Gate::new(gate_bytes_max(buffer), buffer.when_full);
    config.sinks.iter().map(|sink| gate(&sink.buffer)).collect()
}

/// The CPU of the sink core: as configured, or of the allowed ones the last, if there are more than shards; `None` is wherever the kernel
/// puts it.
pub fn sink_cpu(config: &Config, allowed: &[usize], shards: usize) -> Option<usize> {
    match config.sink_core {
        Some(cpu) => Some(usize::from(cpu)),
        None => allowed.iter().max().copied().filter(|_| allowed.len() > shards),
    }
}

/// Whether the sink core may use the CPU that is configured.
fn check_sink_cpu(config: &Config, allowed: &[usize]) -> Result<(), String> {
    match config.sink_core.map(usize::from) {
        Some(cpu) if !allowed.contains(&cpu) => {
            let list: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let list = list.join(", ");
            Err(format!("broker.sink_core = {cpu} is no CPU that the process may use; write one of {list}, or \"auto\""))
        }
        _ => Ok(()),
    }
}

/// What rules see as `node`: as configured, or else the host's name, or else the program's.
pub fn node(config: &Config) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = if config.node.is_empty() { host().trim().to_owned() } else { config.node.clone() };
    if name.is_empty() { "corelane".into() } else { name }
}

fn test_delays() -> Option<TestDelays> {
    let text = std::env::var(TEST_DELAYS).ok()?;
    let (one_in, delay_ms_max) = text.split_once(':')?;
    Some(TestDelays { one_in: one_in.parse().ok()?, delay_ms_max: delay_ms_max.parse().ok()? })
}

pub fn host_facts(config: &Config, bound: &Bound) -> HostFacts {
    let host = &bound.host;
    let mut facts = HostFacts {
        ring_features: host.ring_features.iter().map(|feature| feature.to_string()).collect(),
        shard_cores: bound.cpus.clone(),
        sink_core: sink_cpu(config, &host.cpus, bound.cpus.len()),
        cores_allowed: host.cpus.len(),
        listeners: bound.listening.iter().map(|(_, address)| *address).collect(),
        files: Files {
            soft_at_start: host.open_files_at_start,
            soft: host.open_files.soft,
            hard: host.open_files.hard,
            host_max: None,
        },
        memlock_bytes: (host.locked_memory_bytes.soft != u64::MAX).then_some(host.locked_memory_bytes.soft),
        ..HostFacts::default()
    };
    facts.read_proc();
    facts
}

/// The exit code for a broker that did not start or failed.
pub fn exit_code(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Probe(ProbeError::Unknown(_)) => exit::SOFTWARE,
        RuntimeError::Probe(_) | RuntimeError::Start { .. } | RuntimeError::Process(_) => exit::OS,
        RuntimeError::ShardCount { .. } => exit::CONFIG,
        RuntimeError::Bind { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => exit::NO_PERMISSION,
        RuntimeError::Bind { .. } => exit::UNAVAILABLE,
        RuntimeError::Sinks(_) => exit::CONFIG,
        RuntimeError::Shard { .. } => exit::SOFTWARE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, resolve_text};
    use crate::shard::WhenFull;
    use std::path::Path;

    fn config(text: &str) -> Config {
        resolve_text(Some((Path::new("c.toml"), text)), &Flags::default()).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn a_gate_has_the_room_of_its_sinks_outermost_buffer() {
        let config = config(
            "[[file]]\nname = \"a\"\nmemory_bytes_max = \"2 MiB\"\n\
             [[file]]\nname = \"b\"\npath = \"b\"\ndisk_path = \"d\"\ndisk_bytes_max = \"3 MiB\"\nwhen_full = \"hold\"\n",
        );
        let gates: Vec<_> = gates(&config).iter().map(|gate| (gate.bytes_max, gate.when_full)).collect();
        assert_eq!(gates, [(2 << 20, WhenFull::DropOldest), (3 << 20, WhenFull::Hold)]);
    }

    #[test]
    fn the_sink_core_takes_a_cpu_of_its_own_only_if_the_shards_leave_one() {
        let auto = Config::default();
        assert_eq!(sink_cpu(&auto, &[0, 1, 5], 2), Some(5));
        assert_eq!(sink_cpu(&auto, &[0, 1], 2), None);
        assert_eq!(sink_cpu(&config("[broker]\nsink_core = 1\n"), &[0, 1], 2), Some(1));
        let far = config("[broker]\nsink_core = 999\n");
        assert!(check_sink_cpu(&far, &[0, 1]).unwrap_err().ends_with("write one of 0, 1, or \"auto\""));
        assert_eq!(check_sink_cpu(&far, &[999]).and(check_sink_cpu(&auto, &[0])), Ok(()));
        assert_eq!(node(&config("[broker]\nnode = \"east-1\"\n")), "east-1");
        assert!(!node(&auto).is_empty());
    }
}

//! The needs of so many connections, each judged by what the host has. Plain numbers in, rows out.

use super::facts::{Device, Facts};
use super::{Quantity, Row, Verdict};
use crate::boot::files_fix;
use crate::config::{Config, Shards, group_digits};
use crate::ids::CORES_MAX;
use crate::runtime::probe;

/// What an idle connection with a subscription to a filter of its own was measured to cost: the broker's own memory, and the kernel's for
/// its end. Rather too much than too little: bench/results/compare.md has what it costs now.
pub const USER_BYTES: u64 = 399;
pub const KERNEL_BYTES: u64 = 3852;
/// A broker without connections.
pub const BASE_BYTES: u64 = 8_400_000;
/// What a socket's buffer has to hold under memory pressure: a page.
const BUFFER_BYTES_MIN: u64 = 4096;

/// `config`: of the broker that is to run here; without one, the defaults are reckoned with.
pub fn rows(connections: u64, config: Option<&Config>, facts: &Facts) -> Vec<Row> {
    let default = Config::default();
    let Config { shards, listeners, limits, .. } = config.unwrap_or(&default);
    let shards = match shards {
        Shards::Exactly(shards) => u64::from(*shards),
        Shards::Auto => facts.cores_allowed.unwrap_or(1).clamp(1, CORES_MAX as u64),
    };
    let files = connections + probe::files_beside_connections(shards as usize);
    let host_files = files + facts.files_in_use.unwrap_or(0);
    // A burst of connects is at most all of them; a longer queue than the listener asks for is of no use.
    let backlog = listeners.iter().map(|listener| u64::from(listener.backlog)).max().unwrap_or(1).min(connections);
    let mut rows = vec![
        kernel(facts),
        ring(facts),
        at_least("open files", "files", files, facts.open_files, || files_fix(files)),
        at_least("fs.nr_open", "files", files, facts.nr_open, || format!("sysctl -w fs.nr_open={files}")),
        at_least("fs.file-max", "files", host_files, facts.file_max, || format!("sysctl -w fs.file-max={host_files}")),
        at_least("locked memory", "bytes", shards * probe::LOCKED_BYTES_MIN, facts.locked_memory_bytes, || {
            "LimitMEMLOCK=infinity in the systemd unit (docker run --ulimit memlock=-1; ulimit -l unlimited)".to_owned()
        }),
        // A socket with a byte in its buffers counts as a page: so many when one message goes to all.
        at_least("net.ipv4.tcp_mem", "pages", connections, facts.tcp_mem_pages.map(|[_, pressure, _]| pressure), || {
            format!("sysctl -w net.ipv4.tcp_mem='{connections} {} {}'", 2 * connections, 4 * connections)
        }),
        buffer("net.ipv4.tcp_rmem", facts.receive_bytes),
        buffer("net.ipv4.tcp_wmem", facts.send_bytes),
        at_least("net.core.somaxconn", "", backlog, facts.somaxconn, || format!("sysctl -w net.core.somaxconn={backlog}")),
        at_least("net.ipv4.tcp_max_syn_backlog", "", backlog, facts.syn_backlog, || {
            format!("sysctl -w net.ipv4.tcp_max_syn_backlog={backlog}")
        }),
        as_hint(at_least("net.core.netdev_max_backlog", "packets", connections, facts.core_backlog, || {
            format!("for clients on this host, or with RPS: sysctl -w net.core.netdev_max_backlog={connections}")
        })),
        as_hint(at_least("net.ipv4.tcp_max_orphans", "", connections, facts.orphans_max, || {
            format!("or some clients see a reset when the broker stops: sysctl -w net.ipv4.tcp_max_orphans={connections}")
        })),
    ];
    if let Some(have) = facts.conntrack_max {
        rows.push(at_least("nf_conntrack_max", "", connections, Some(have), || {
            format!("sysctl -w net.netfilter.nf_conntrack_max={connections}, or leave the broker's port untracked (notrack)")
        }));
    }
    rows.push(memory(connections, facts));
    let most = at_least("limits.connections_max", "", connections, Some(limits.connections_max), || {
        let whose = if config.is_some() { "of this configuration" } else { "and that is its default" };
        format!("{whose}: set it to {connections}")
    });
    rows.push(if config.is_some() { most } else { as_hint(most) });
    rows.push(ports(connections, facts));
    rows.push(cores(facts));
    rows.extend(facts.devices.iter().map(|device| receive_queues(device, shards)));
    rows
}

/// A row that is ok from `need` on. `fix` is what to do below it.
fn at_least(name: &str, unit: &'static str, need: u64, have: Option<u64>, fix: impl FnOnce() -> String) -> Row {
    let verdict = match have {
        None => Verdict::Unknown,
        Some(have) if have < need => Verdict::Short,
        Some(_) => Verdict::Ok,
    };
    Row {
        name: name.to_owned(),
        need: Quantity::Number(need),
        have: have.map(Quantity::Number),
        unit,
        verdict,
        fix: (verdict == Verdict::Short).then(fix),
    }
}

/// What is short is only worth knowing.
fn as_hint(row: Row) -> Row {
    Row { verdict: if row.verdict == Verdict::Short { Verdict::Hint } else { row.verdict }, ..row }
}

fn text(name: &str, need: &str, have: Option<String>, verdict: Verdict, fix: Option<String>) -> Row {
    Row { name: name.to_owned(), need: Quantity::Text(need.to_owned()), have: have.map(Quantity::Text), unit: "", verdict, fix }
}

fn kernel(facts: &Facts) -> Row {
    let (major, minor) = probe::KERNEL_FLOOR;
    let need = format!("Linux {major}.{minor}");
    if facts.kernel.is_empty() {
        return text("kernel", &need, None, Verdict::Unknown, None);
    }
    let too_old = probe::is_too_old(&facts.kernel);
    let verdict = if too_old { Verdict::Short } else { Verdict::Ok };
    text("kernel", &need, Some(facts.kernel.clone()), verdict, too_old.then(|| "upgrade the kernel".to_owned()))
}

fn ring(facts: &Facts) -> Row {
    match &facts.ring {
        None => text("io_uring", "usable", None, Verdict::Unknown, None),
        Some(Ok(_)) => text("io_uring", "usable", Some("usable".to_owned()), Verdict::Ok, None),
        Some(Err(why)) => text("io_uring", "usable", Some("refused".to_owned()), Verdict::Short, Some(why.clone())),
    }
}

fn buffer(name: &str, have: Option<[u64; 3]>) -> Row {
    at_least(name, "bytes", BUFFER_BYTES_MIN, have.map(|[least, _, _]| least), || {
        let [_, first, most] = have.unwrap_or_default().map(|bytes| bytes.max(BUFFER_BYTES_MIN));
        format!("sysctl -w {name}='{BUFFER_BYTES_MIN} {first} {most}'")
    })
}

fn memory(connections: u64, facts: &Facts) -> Row {
    let (user, kernel) = (BASE_BYTES + connections * USER_BYTES, connections * KERNEL_BYTES);
    at_least("memory, idle", "bytes", user + kernel, facts.memory_bytes, || {
        let mib = |bytes: u64| group_digits(bytes >> 20, ',');
        format!(
            "{} MiB of the broker and {} MiB of the kernel for sockets: more memory, a higher memory.max, or fewer connections",
            mib(user),
            mib(kernel)
        )
    })
}

/// Only clients on this host, such as a load generator, use its ports.
fn ports(connections: u64, facts: &Facts) -> Row {
    as_hint(at_least("ports of a client host", "", connections, facts.ports, || {
        let sources = connections.div_ceil(facts.ports.unwrap_or(1).max(1));
        format!(
            "only for clients on this host: they need {sources} source addresses \
             (corelane-bench takes as many of 127.0.0.2 and on as it needs, or --source)"
        )
    }))
}

fn cores(facts: &Facts) -> Row {
    let name = "cores allowed";
    match (facts.cores_allowed, facts.cores) {
        (Some(allowed), Some(all)) => as_hint(at_least(name, "", all, Some(allowed), || {
            "the affinity mask leaves some out: intended? (CPUAffinity= in the unit, taskset, cpuset)".to_owned()
        })),
        (allowed, _) => Row { verdict: Verdict::Unknown, ..at_least(name, "", 1, allowed, String::new) },
    }
}

fn receive_queues(device: &Device, shards: u64) -> Row {
    let name = format!("receive queues of {}", device.name);
    if device.steered {
        return text(&name, "all cores", Some("spread (RPS)".to_owned()), Verdict::Ok, None);
    }
    as_hint(at_least(&name, "", shards, Some(device.receive_queues), || {
        format!(
            "its interrupts keep {} of {shards} cores busy: ethtool -L {} combined {shards}, or a mask of cores into \
             /sys/class/net/{}/queues/rx-*/rps_cpus",
            device.receive_queues, device.name, device.name
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Diagnosis;

    const MILLION: u64 = 1_000_000;

    /// A host that is just good enough for a million connections.
    fn enough() -> Facts {
        Facts {
            kernel: "6.1.0-57-cloud-amd64".into(),
            ring: Some(Ok("SINGLE_ISSUER".into())),
            open_files: Some(1_000_096),
            locked_memory_bytes: Some(1 << 20),
            nr_open: Some(1_000_096),
            file_max: Some(1_001_096),
            files_in_use: Some(1000),
            tcp_mem_pages: Some([500_000, 1_000_000, 2_000_000]),
            receive_bytes: Some([4096, 131_072, 6_291_456]),
            send_bytes: Some([4096, 16_384, 4_194_304]),
            somaxconn: Some(65_535),
            syn_backlog: Some(65_535),
            core_backlog: Some(1_000_000),
            orphans_max: Some(1_000_000),
            ports: Some(1_000_000),
            conntrack_max: Some(1_000_000),
            memory_bytes: Some(8_400_000 + 4_251_000_000),
            cores_allowed: Some(2),
            cores: Some(2),
            devices: vec![Device { name: "eth0".into(), receive_queues: 2, steered: false }],
        }
    }

    fn row(facts: &Facts, connections: u64, name: &str) -> Row {
        let rows = rows(connections, None, facts);
        rows.into_iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn a_configuration_takes_the_place_of_the_defaults() {
        let mut config = Config { shards: Shards::Exactly(4), ..Config::default() };
        config.listeners[0].backlog = 128;
        config.limits.connections_max = 999_999;
        let rows = rows(MILLION, Some(&config), &enough());
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("open files").need, Quantity::Number(MILLION + 32 + 4 * 32));
        assert_eq!(row("locked memory").need, Quantity::Number(2 << 20));
        assert_eq!(row("net.core.somaxconn").need, Quantity::Number(128));
        assert_eq!(row("limits.connections_max").verdict, Verdict::Short);
        assert_eq!(row("limits.connections_max").fix.as_deref(), Some("of this configuration: set it to 1000000"));
    }

    #[test]
    fn a_host_that_is_just_good_enough_is_ok_and_one_connection_more_is_short_by_what_depends_on_it() {
        let good = Diagnosis::new(MILLION, None, &enough());
        assert!(good.rows.iter().all(|row| row.verdict == Verdict::Ok && row.fix.is_none()), "{good}");
        assert_eq!(good.verdict, Verdict::Ok);
        let bad = Diagnosis::new(MILLION + 1, None, &enough());
        let short = |verdict| bad.rows.iter().filter(|row| row.verdict == verdict).map(|row| &row.name[..]).collect::<Vec<_>>();
        assert_eq!(
            short(Verdict::Short),
            ["open files", "fs.nr_open", "fs.file-max", "net.ipv4.tcp_mem", "nf_conntrack_max", "memory, idle"]
        );
        assert_eq!(
            short(Verdict::Hint),
            ["net.core.netdev_max_backlog", "net.ipv4.tcp_max_orphans", "limits.connections_max", "ports of a client host"]
        );
        assert_eq!(bad.verdict, Verdict::Short);
    }

    type Spoil = fn(&mut Facts);

    #[test]
    fn each_thing_that_is_short_is_named_with_its_fix() {
        let cases: [(&str, Spoil, Verdict, &str); 20] = [
            ("kernel", |f| f.kernel = "5.15.0".into(), Verdict::Short, "upgrade"),
            ("io_uring", |f| f.ring = Some(Err("seccomp".into())), Verdict::Short, "seccomp"),
            ("open files", |f| f.open_files = Some(20_000), Verdict::Short, "LimitNOFILE=1000096"),
            ("fs.nr_open", |f| f.nr_open = Some(1_000_095), Verdict::Short, "sysctl -w fs.nr_open=1000096"),
            ("fs.file-max", |f| f.files_in_use = Some(1001), Verdict::Short, "sysctl -w fs.file-max=1001097"),
            ("locked memory", |f| f.locked_memory_bytes = Some(64 << 10), Verdict::Short, "LimitMEMLOCK=infinity"),
            (
                "net.ipv4.tcp_mem",
                |f| f.tcp_mem_pages = Some([1, 999_999, 9_999_999]),
                Verdict::Short,
                "'1000000 2000000 4000000'",
            ),
            ("net.ipv4.tcp_rmem", |f| f.receive_bytes = Some([4095, 9000, 1]), Verdict::Short, "tcp_rmem='4096 9000 4096'"),
            ("net.ipv4.tcp_wmem", |f| f.send_bytes = Some([1, 2, 3]), Verdict::Short, "tcp_wmem='4096 4096 4096'"),
            ("net.core.somaxconn", |f| f.somaxconn = Some(4096), Verdict::Short, "sysctl -w net.core.somaxconn=65535"),
            ("net.ipv4.tcp_max_syn_backlog", |f| f.syn_backlog = Some(65_534), Verdict::Short, "tcp_max_syn_backlog=65535"),
            ("net.core.netdev_max_backlog", |f| f.core_backlog = Some(1000), Verdict::Hint, "netdev_max_backlog=1000000"),
            ("net.ipv4.tcp_max_orphans", |f| f.orphans_max = Some(65_536), Verdict::Hint, "tcp_max_orphans=1000000"),
            ("nf_conntrack_max", |f| f.conntrack_max = Some(262_144), Verdict::Short, "nf_conntrack_max=1000000"),
            ("memory, idle", |f| f.memory_bytes = Some(4 << 30), Verdict::Ok, ""),
            ("memory, idle", |f| f.memory_bytes = Some(2 << 30), Verdict::Short, "388 MiB of the broker and 3,673 MiB"),
            ("ports of a client host", |f| f.ports = Some(28_232), Verdict::Hint, "36 source addresses"),
            ("cores allowed", |f| f.cores = Some(8), Verdict::Hint, "affinity"),
            ("receive queues of eth0", |f| f.devices[0].receive_queues = 1, Verdict::Hint, "ethtool -L eth0 combined 2"),
            (
                "receive queues of eth0",
                |f| f.devices[0] = Device { name: "eth0".into(), receive_queues: 1, steered: true },
                Verdict::Ok,
                "",
            ),
        ];
        for (name, spoil, verdict, fix) in cases {
            let mut facts = enough();
            spoil(&mut facts);
            let row = row(&facts, MILLION, name);
            assert_eq!(row.verdict, verdict, "{row:?}");
            assert!(row.fix.as_deref().unwrap_or_default().contains(fix), "{row:?}");
            assert_eq!(row.fix.is_some(), verdict != Verdict::Ok, "{row:?}");
        }
    }

    #[test]
    fn what_the_host_does_not_say_is_unknown_and_not_short() {
        let diagnosis = Diagnosis::new(1000, None, &Facts::default());
        assert_eq!(diagnosis.verdict, Verdict::Ok);
        for row in diagnosis.rows.iter().filter(|row| row.name != "limits.connections_max") {
            assert_eq!((row.verdict, row.have.is_none()), (Verdict::Unknown, true), "{row:?}");
        }
    }

    #[test]
    fn connections_that_nobody_tracks_need_no_room_in_the_table() {
        let facts = Facts { conntrack_max: None, ..enough() };
        assert!(rows(MILLION, None, &facts).iter().all(|row| row.name != "nf_conntrack_max"));
    }

    #[test]
    fn a_few_connections_need_no_long_queues() {
        let facts = Facts { somaxconn: Some(4096), syn_backlog: Some(4096), ..enough() };
        assert_eq!(row(&facts, 4096, "net.core.somaxconn").verdict, Verdict::Ok);
        assert_eq!(row(&facts, 4097, "net.core.somaxconn").verdict, Verdict::Short);
        assert_eq!(row(&facts, 4096, "net.ipv4.tcp_max_syn_backlog").verdict, Verdict::Ok);
    }

    #[test]
    fn the_table_has_the_fix_below_its_row_and_json_has_numbers() {
        let facts = Facts { open_files: Some(20_000), locked_memory_bytes: Some(u64::MAX), ..enough() };
        let diagnosis = Diagnosis::new(MILLION, None, &facts);
        let text = diagnosis.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.starts_with("open files")).unwrap();
        assert!(lines[at].contains("1,000,096 files") && lines[at].ends_with("short"), "{text}");
        assert!(lines[at + 1].trim_start().starts_with("LimitNOFILE=1000096"), "{text}");
        assert!(text.contains("no limit") && text.contains("4,062 MiB"), "{text}");
        assert!(text.ends_with("1,000,000 connections: 1 short\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&diagnosis.to_json()).unwrap();
        assert_eq!((&json["connections"], &json["verdict"]), (&MILLION.into(), &"short".into()));
        let files = json["rows"].as_array().unwrap().iter().find(|row| row["name"] == "open files").unwrap();
        assert_eq!((&files["need"], &files["have"]), (&1_000_096.into(), &20_000.into()));
    }
}

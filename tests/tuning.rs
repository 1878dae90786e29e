//! `tuning/apply.sh`: what it sets is what `corelane doctor` asks for, what it wrote for a million connections is what lies beside it, and
//! `--revert` leaves no trace. It works on folders made for the test instead of /proc/sys and /etc.

use corelane::doctor::rows::rows;
use corelane::doctor::{Facts, Row, Verdict};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Folders in place of /proc/sys, /etc and the state, removed when dropped.
struct Host(PathBuf);

impl Host {
    /// With a fresh kernel's values.
    fn new(name: &str) -> Self {
        let host = Self(std::env::temp_dir().join(format!("corelane-tuning-{name}-{}", std::process::id())));
        for (knob, value) in [
            ("fs/nr_open", "1048576"),
            ("fs/file-max", "9223372036854775807"),
            ("net/core/somaxconn", "4096"),
            ("net/core/netdev_max_backlog", "1000"),
            ("net/ipv4/tcp_max_syn_backlog", "1024"),
            ("net/ipv4/tcp_max_orphans", "65536"),
            ("net/ipv4/tcp_mem", "142257\t189676\t9000000"),
        ] {
            let path = host.0.join("sys").join(knob);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        for folder in ["sysctl.d", "security/limits.d", "systemd/system"] {
            fs::create_dir_all(host.0.join("etc").join(folder)).unwrap();
        }
        host
    }

    fn apply(&self, arguments: &[&str]) -> Output {
        Command::new("sh")
            .arg(Path::new(ROOT).join("tuning/apply.sh"))
            .args(arguments)
            .env("CORELANE_TUNING_SYS", self.0.join("sys"))
            .env("CORELANE_TUNING_ETC", self.0.join("etc"))
            .env("CORELANE_TUNING_STATE", self.0.join("state"))
            .output()
            .unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.apply(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn knob(&self, name: &str) -> String {
        let text = fs::read_to_string(self.0.join("sys").join(name.replace('.', "/"))).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Every file and folder with its text, spaces made equal.
    fn everything(&self) -> BTreeMap<PathBuf, String> {
        fn walk(path: &Path, into: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
                let text = match entry.path().is_dir() {
                    true => String::new(),
                    false => fs::read_to_string(entry.path()).unwrap().split_whitespace().collect::<Vec<_>>().join(" "),
                };
                if entry.path().is_dir() {
                    walk(&entry.path(), into);
                }
                into.insert(entry.path(), text);
            }
        }
        let mut all = BTreeMap::new();
        walk(&self.0, &mut all);
        all
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_short_is_said_then_raised_and_nothing_is_lowered() {
    let host = Host::new("raise");
    let check = host.apply(&["--connections", "1000000", "--check"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let table = String::from_utf8(check.stdout).unwrap();
    let verdict = |knob: &str| table.lines().find(|line| line.starts_with(knob)).and_then(|line| line.split(' ').next_back());
    assert_eq!(
        (verdict("fs.nr_open"), verdict("fs.file-max"), verdict("net.ipv4.tcp_mem")),
        (Some("short"), Some("ok"), Some("short"))
    );

    host.succeed(&["--connections", "1000000"]);
    assert_eq!(host.knob("fs.nr_open"), "1104096");
    assert_eq!(host.knob("fs.file-max"), "9223372036854775807");
    assert_eq!(host.knob("net.core.somaxconn"), "65535");
    assert_eq!(host.knob("net.ipv4.tcp_mem"), "1000000 2000000 9000000");
    host.succeed(&["--connections", "1000000", "--check"]);
    let service = fs::read_to_string(host.0.join("etc/systemd/system/corelane.service.d/limits.conf")).unwrap();
    assert!(service.contains("LimitNOFILE=1104096\n"), "{service}");
    let boot = fs::read_to_string(host.0.join("etc/sysctl.d/90-corelane.conf")).unwrap();
    assert!(boot.contains("net.ipv4.tcp_mem = 1000000 2000000 9000000\n"), "{boot}");
    assert!(boot.contains("fs.file-max = 9223372036854775807\n"), "{boot}");
}

#[test]
fn revert_puts_back_what_was_there_before_the_first_of_several_applies() {
    let host = Host::new("revert");
    let own = host.0.join("etc/security/limits.d/90-corelane.conf");
    fs::write(&own, "* hard nofile 7\n").unwrap();
    let before = host.everything();
    host.succeed(&["--connections", "200000"]);
    host.succeed(&["--connections", "1000000"]);
    let applied = host.everything();
    host.succeed(&["--connections", "1000000"]);
    assert_eq!(host.everything(), applied, "a second time changes nothing");
    assert_eq!(host.knob("fs.nr_open"), "1104096");
    host.succeed(&["--revert"]);
    assert_eq!(host.everything(), before);
    assert!(host.succeed(&["--revert"]).contains("nothing to revert"));
}

#[test]
fn the_doctor_finds_nothing_short_of_what_apply_sets_for_any_number() {
    for connections in [1u64, 20_000, 200_000, 1_000_000, 10_000_000] {
        let printed =
            Host::new(&connections.to_string()).succeed(&["--connections", &connections.to_string(), "--print", "sysctl"]);
        let value = |knob: &str| {
            let line = printed.lines().find_map(|line| line.trim_start_matches('-').strip_prefix(knob)?.strip_prefix(" = "));
            let numbers =
                line.unwrap_or_else(|| panic!("no {knob} in {printed}")).split(' ').map(|number| number.parse().unwrap());
            numbers.collect::<Vec<u64>>()
        };
        let facts = Facts {
            open_files: Some(value("fs.nr_open")[0]),
            nr_open: Some(value("fs.nr_open")[0]),
            file_max: Some(value("fs.file-max")[0]),
            // The load generator's.
            files_in_use: Some(connections + 1000),
            tcp_mem_pages: value("net.ipv4.tcp_mem").try_into().ok(),
            somaxconn: Some(value("net.core.somaxconn")[0]),
            syn_backlog: Some(value("net.ipv4.tcp_max_syn_backlog")[0]),
            core_backlog: Some(value("net.core.netdev_max_backlog")[0]),
            orphans_max: Some(value("net.ipv4.tcp_max_orphans")[0]),
            conntrack_max: Some(value("net.netfilter.nf_conntrack_max")[0]),
            cores_allowed: Some(64),
            ..Facts::default()
        };
        let rows = rows(connections, &facts);
        let judged = |row: &&Row| row.have.is_some() && !matches!(&row.name[..], "limits.connections_max" | "cores allowed");
        assert_eq!(rows.iter().filter(judged).count(), 9, "{rows:#?}");
        assert!(rows.iter().filter(judged).all(|row| row.verdict == Verdict::Ok), "{rows:#?}");
    }
}

#[test]
fn the_files_beside_it_are_what_it_writes_for_a_million_connections() {
    let host = Host::new("files");
    for (what, file) in
        [("sysctl", "sysctl.d/90-corelane.conf"), ("limits", "limits.d/90-corelane.conf"), ("systemd", "systemd/limits.conf")]
    {
        let printed = host.succeed(&["--connections", "1000000", "--print", what]);
        assert_eq!(fs::read_to_string(Path::new(ROOT).join("tuning").join(file)).unwrap(), printed, "{file}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_2_and_changes_nothing() {
    let host = Host::new("usage");
    let before = host.everything();
    for arguments in
        [&[][..], &["--connections"], &["--connections", "many"], &["--connections", "9", "--print", "all"], &["--undo"]]
    {
        assert_eq!(host.apply(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(host.everything(), before);
}

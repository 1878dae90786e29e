//! `tuning/apply.sh`: it judges as `corelane doctor` does and sets what that asks for, what it wrote for a million connections is what lies beside it, and
//! `--revert` leaves no trace. It works on folders made for the test instead of /proc/sys and /etc.

use corelane::doctor::rows::rows;
use corelane::doctor::{Facts, Quantity, Row, Verdict};
use corelane::runtime::probe;
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

    fn set(&self, name: &str, value: impl std::fmt::Display) {
        fs::write(self.0.join("sys").join(name.replace('.', "/")), format!("{value}\n")).unwrap();
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
        (verdict("fs.file-max"), verdict("net.ipv4.tcp_mem"), verdict("net.ipv4.tcp_max_orphans")),
        (Some("ok"), Some("short"), Some("hint"))
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
fn a_limit_of_open_files_that_the_host_gives_already_is_not_lowered() {
    let host = Host::new("limits");
    let limits = || {
        let of = |file: &str| fs::read_to_string(host.0.join("etc").join(file)).unwrap();
        let service = of("systemd/system/corelane.service.d/limits.conf");
        let login = of("security/limits.d/90-corelane.conf");
        let nofile = login.lines().find_map(|line| line.strip_prefix("*    hard nofile  ").map(str::to_owned));
        (nofile.unwrap(), service.lines().find_map(|line| line.strip_prefix("LimitNOFILE=").map(str::to_owned)).unwrap())
    };
    let both = |number: &str| (number.to_owned(), number.to_owned());
    fs::write(host.0.join("etc/security/limits.d/50-site.conf"), "# ours\n*\t-  nofile 1048570\n@few hard nofile 9\n").unwrap();
    host.succeed(&["--connections", "1000"]);
    assert_eq!(limits(), both("1048570"));
    // Above fs.nr_open, which is for so many 2204096, nobody could log in.
    fs::write(host.0.join("etc/security/limits.d/50-site.conf"), "* hard nofile 3000000\n").unwrap();
    host.succeed(&["--connections", "2000000"]);
    assert_eq!(limits(), both("2204096"));
    fs::remove_file(host.0.join("etc/security/limits.d/50-site.conf")).unwrap();
    host.succeed(&["--connections", "1000"]);
    assert_eq!(limits(), both("2204096"), "what an earlier apply wrote");
}

#[test]
fn a_knob_that_is_gone_does_not_keep_the_rest_from_being_put_back() {
    let host = Host::new("gone");
    let tracked = host.0.join("sys/net/netfilter");
    fs::create_dir_all(&tracked).unwrap();
    let before = host.everything();
    host.set("net.netfilter.nf_conntrack_max", 262_144);
    host.succeed(&["--connections", "1000000"]);
    fs::remove_file(tracked.join("nf_conntrack_max")).unwrap();
    let reverted = host.apply(&["--revert"]);
    assert!(reverted.status.success(), "{reverted:?}");
    assert!(String::from_utf8_lossy(&reverted.stderr).contains("nf_conntrack_max is left out"), "{reverted:?}");
    assert_eq!(host.everything(), before);
}

#[test]
fn several_at_once_come_one_after_the_other() {
    let host = Host::new("at-once");
    let before = host.everything();
    std::thread::scope(|scope| {
        for round in 0..8 {
            let host = &host;
            scope.spawn(move || host.succeed(&["--connections", &format!("{}", 1_000_000 + round)]));
        }
    });
    let files = ["sysctl.d/90-corelane.conf", "security/limits.d/90-corelane.conf"];
    for file in files {
        let text = fs::read_to_string(host.0.join("etc").join(file)).unwrap();
        assert!(text.lines().count() >= 5, "{file}: {text}");
    }
    host.succeed(&["--revert"]);
    assert_eq!(host.everything(), before);
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
fn its_need_and_verdict_of_each_knob_are_the_doctors() {
    let host = Host::new("agree");
    fs::create_dir_all(host.0.join("sys/net/netfilter")).unwrap();
    let cores = probe::cpus().unwrap().len() as u64;
    for connections in [1u64, 2000, 65_535, 200_000, 1_000_000] {
        let files = connections + probe::files_beside_connections(cores as usize);
        // Just enough of everything, then one less.
        for less in [0, 1] {
            let backlog = connections.min(65_535);
            let facts = Facts {
                cores_allowed: Some(cores),
                files_in_use: Some(1000),
                nr_open: Some(files - less),
                file_max: Some(files + 1000 - less),
                somaxconn: Some(backlog - less),
                syn_backlog: Some(backlog - less),
                core_backlog: Some(connections - less),
                orphans_max: Some(connections - less),
                tcp_mem_pages: Some([1, connections - less, connections]),
                conntrack_max: Some(connections - less),
                ..Facts::default()
            };
            host.set("fs.file-nr", "1000\t0\t9223372036854775807");
            host.set("fs.nr_open", facts.nr_open.unwrap());
            host.set("fs.file-max", facts.file_max.unwrap());
            host.set("net.core.somaxconn", backlog - less);
            host.set("net.ipv4.tcp_max_syn_backlog", backlog - less);
            host.set("net.core.netdev_max_backlog", connections - less);
            host.set("net.ipv4.tcp_max_orphans", connections - less);
            host.set("net.ipv4.tcp_mem", format!("1\t{}\t{connections}", connections - less));
            host.set("net.netfilter.nf_conntrack_max", connections - less);

            let check = host.apply(&["--connections", &connections.to_string(), "--check"]);
            assert_eq!(check.status.code(), Some(less as i32), "{check:?}");
            let rows = rows(connections, None, &facts);
            let table = String::from_utf8(check.stdout).unwrap();
            let knobs: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
            assert_eq!(knobs.len(), 8, "{table}");
            for knob in knobs {
                let row = rows.iter().find(|row| knob[0].ends_with(&row.name)).unwrap_or_else(|| panic!("no row {}", knob[0]));
                assert_eq!(row.verdict.to_string(), *knob.last().unwrap(), "{knob:?}: {row:?}");
                let Quantity::Number(need) = row.need else { panic!("{row:?}") };
                // The doctor judges the second number of tcp_mem.
                let shown = if knob[0] == "net.ipv4.tcp_mem" { &knob[1..4] } else { &knob[1..2] };
                assert!(shown.contains(&&need.to_string()[..]), "{knob:?}: {row:?}");
            }
        }
    }
}

#[test]
fn what_a_namespace_hides_is_unknown_and_not_short() {
    let host = Host::new("hidden");
    fs::remove_file(host.0.join("sys/net/ipv4/tcp_mem")).unwrap();
    let table = host.succeed(&["--connections", "1000", "--check"]);
    let line = |knob: &str| table.lines().find(|line| line.starts_with(knob)).unwrap();
    assert!(line("net.ipv4.tcp_mem").contains("unknown"), "{table}");
    assert!(line("net.netfilter.nf_conntrack_max").ends_with("ok (not in this kernel)"), "{table}");
}

#[test]
fn leading_zeros_mean_nothing() {
    let host = Host::new("zeros");
    let plain = host.succeed(&["--connections", "10000", "--print", "sysctl"]);
    assert_eq!(host.succeed(&["--connections", "010000", "--print", "sysctl"]), plain);
    assert!(host.succeed(&["--connections", "089", "--print", "sysctl"]).contains("tcp_mem = 89 178 356\n"));
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
        let rows = rows(connections, None, &facts);
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
    for (arguments, expected) in [
        (&[][..], "--connections needs a whole number"),
        (&["--connections"], "--connections needs a value"),
        (&["--connections", "many"], "not \"many\""),
        (&["--connections", "0"], "from 1 to 100000000"),
        (&["--connections", "9", "--print"], "--print needs a value"),
        (&["--connections", "9", "--print", "all"], "not \"all\""),
        (&["--undo"], "unknown option --undo"),
    ] {
        let ended = host.apply(arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).starts_with("apply.sh: "), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains(expected), "{ended:?}");
    }
    assert_eq!(host.everything(), before);
}

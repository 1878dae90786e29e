//! The command: what it says and how it ends. Exit codes are those of sysexits.h.

use crate::harness::{Broker, PATIENCE, Version};
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How a run of the command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the command to its end; one that does not end is killed and has no code.
fn corelane(arguments: &[&str]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_corelane"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the broker's binary starts");
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("a child can be waited for").is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let status = child.wait().expect("a child can be waited for");
    let read = |from: Option<&mut dyn Read>| {
        let mut text = String::new();
        from.expect("piped").read_to_string(&mut text).expect("it writes text");
        text
    };
    let stdout = read(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read));
    let stderr = read(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read));
    Ended { code: status.code(), stdout, stderr }
}

/// A configuration file that is removed when it is dropped.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("corelane-command-{}-{}.toml", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the file can be written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_sound_configuration_is_called_so_and_the_code_is_0() {
    let file = File::new("[limits]\npacket_bytes_max = \"64 KiB\"\n[[listener]]\naddress = \"127.0.0.1:1884\"\n");
    let ended = corelane(&["check-config", file.path()]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.stdout, format!("{}: no errors\n", file.path()));
}

#[test]
fn the_doctor_ends_with_1_where_something_is_short_and_its_json_is_one_object() {
    // No host has memory for so many.
    let ended = corelane(&["doctor", "--connections", "100000000"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    let files = ended.stdout.lines().skip_while(|line| !line.starts_with("open files")).take(2).collect::<Vec<_>>();
    assert!(files[0].contains("100,000,") && files[0].ends_with("short"), "{}", ended.stdout);
    assert!(files[1].contains("LimitNOFILE=100000"), "{}", ended.stdout);

    let ended = corelane(&["doctor", "--connections", "1", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("{\"connections\":1,\"verdict\":\"ok\",\"rows\":[{"), "{}", ended.stdout);
    assert_eq!(ended.stdout.lines().count(), 1);
}

#[test]
fn a_result_that_cannot_be_written_ends_with_a_code_of_its_own() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    let ended = command.args(["doctor", "--connections", "1"]).stdout(full).output().expect("the broker's binary starts");
    assert_eq!(ended.status.code(), Some(74), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("standard output cannot be written"), "{ended:?}");
}

#[test]
fn each_fault_of_a_configuration_is_a_line_with_file_line_and_what_to_write() {
    let file = File::new("[limits]\npacket_byte_max = 1024\nconnect_deadline_s = \"10s\"\n\n[broker]\nstall_s = -1\n");
    let expected = [
        format!(
            "{}:2:1: error: unknown setting \"packet_byte_max\" in [limits]; did you mean \"packet_bytes_max\"?",
            file.path()
        ),
        format!(
            "{}:3:22: error: limits.connect_deadline_s: this is text; expected a whole number of seconds from 1 to 3,600",
            file.path()
        ),
        format!("{}:6:11: error: broker.stall_s: -1 is out of bounds; expected ", file.path()),
    ];
    for arguments in [vec!["check-config", file.path()], vec!["run", "--config", file.path()], vec!["--config", file.path()]] {
        let ended = corelane(&arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(78), ""), "{ended:?}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 3, "{ended:?}");
        for (line, expected) in lines.iter().zip(&expected) {
            assert!(line.starts_with(expected), "{line}\nis not\n{expected}");
        }
    }
}

#[test]
fn settings_that_clash_are_an_error_with_both_names() {
    let file = File::new("[limits]\noutbox_bytes_max = 4096\n");
    let ended = corelane(&["check-config", file.path()]);
    assert_eq!(ended.code, Some(78));
    assert!(ended.stderr.starts_with(&format!("{}:2:20: error: limits.outbox_bytes_max (", file.path())), "{}", ended.stderr);
    assert!(ended.stderr.contains("limits.packet_bytes_max ("), "{}", ended.stderr);
}

#[test]
fn a_file_that_cannot_be_read_is_a_configuration_error() {
    let ended = corelane(&["check-config", "/nonexistent/corelane.toml"]);
    assert_eq!(ended.code, Some(78));
    assert!(ended.stderr.starts_with("/nonexistent/corelane.toml: error: "), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1);
}

#[test]
fn a_wrong_command_line_ends_with_code_2_and_help_with_0() {
    for arguments in [&["--listen", "1883"][..], &["--shards", "0"], &["--log", "loud"], &["sing"], &["check-config"]] {
        let ended = corelane(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
    }
    let ended = corelane(&["--help"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.contains("Exit codes:"));
    let ended = corelane(&["--version"]);
    assert_eq!((ended.code, ended.stdout), (Some(0), format!("corelane {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn an_address_in_use_ends_with_code_69_and_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = other.local_addr().expect("it is bound").to_string();
    let ended = corelane(&["--shards", "2", "--listen", &address]);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("corelane: error: ") && ended.stderr.contains(&address), "{}", ended.stderr);
    // Another broker is as good as any other process, although both share their ports among shards.
    let broker = Broker::start();
    let ended = corelane(&["--shards", "2", "--listen", &broker.address().to_string()]);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    broker.client(Version::V311, "still-served").ping();
}

#[test]
fn an_address_of_another_host_ends_with_code_69() {
    let file = File::new("[broker]\nallow_anonymous = true\n");
    let ended = corelane(&["--shards", "1", "--config", file.path(), "--listen", "192.0.2.1:1883"]);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("192.0.2.1:1883"), "{}", ended.stderr);
}

#[test]
fn another_address_than_loopback_is_refused_unless_anonymous_clients_are_allowed() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let ended = corelane(&["--shards", "1", "--listen", address]);
        assert_eq!(ended.code, Some(78), "{ended:?}");
        assert!(ended.stderr.contains(address) && ended.stderr.contains("allow_anonymous"), "{}", ended.stderr);
    }
    let file = File::new("[broker]\nallow_anonymous = false\n");
    let ended = corelane(&["--shards", "1", "--config", file.path(), "--listen", "127.0.0.1:0"]);
    assert_eq!(ended.code, Some(78), "nobody could connect: {ended:?}");
    let file = File::new("[broker]\nallow_anonymous = true\n");
    let mut child = Command::new(env!("CARGO_BIN_EXE_corelane"))
        .args(["--shards", "1", "--config", file.path(), "--listen", "0.0.0.0:0"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the broker's binary starts");
    let mut stderr = child.stderr.take().expect("piped");
    let (mut said, mut bytes) = (String::new(), [0; 4096]);
    while !said.contains("warning: anyone who reaches") {
        let count = stderr.read(&mut bytes).expect("a pipe can be read");
        assert!(count > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    child.kill().expect("it runs");
    child.wait().expect("a child can be waited for");
}

#[test]
fn the_start_screen_says_what_runs() {
    let broker = Broker::start();
    let log = broker.log();
    for part in [
        &format!("Corelane {} on Linux ", env!("CARGO_PKG_VERSION"))[..],
        "io_uring ",
        "shards        2 on core",
        &format!("listening on  {}, anonymous clients allowed", broker.address()),
        "connections   up to ",
        "files ",
        "memlock ",
    ] {
        assert!(log.contains(part), "no {part:?} in\n{log}");
    }
}

#[test]
fn the_reference_is_a_sound_configuration() {
    let reference = corelane(&["config-reference"]);
    assert_eq!((reference.code, reference.stderr.as_str()), (Some(0), ""));
    let file = File::new(&reference.stdout);
    assert_eq!(corelane(&["check-config", file.path()]).code, Some(0));
    assert!(reference.stdout.contains("packet_bytes_max") && reference.stdout.contains("a change needs a restart"));
}

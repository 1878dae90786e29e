//! What the scripts have in common: a wrong option is named and ends them with 2 before anything is built or installed, and a signal ends
//! them at once, with what they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");

/// A folder with a `corelane-bench` that names one scenario and one case, and otherwise takes a minute; removed when dropped.
struct Bench(PathBuf);

impl Bench {
    fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("corelane-scripts-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("corelane-bench");
        fs::write(
            &program,
            "#!/bin/sh\n[ \"$1\" != list ] || exec printf 'scenarios:\\n  echo 1\\ncases:\\n  qos0 1\\n'\nexec sleep 60\n",
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(Path::new(SCRIPTS).join(script));
        command.env("CORELANE_BENCH_BIN", &self.0).env("CORELANE_BROKER", env!("CARGO_BIN_EXE_corelane")).stdin(Stdio::null());
        command
    }

    fn run(&self, script: &str, arguments: &[&str]) -> Output {
        self.command(script).args(arguments).output().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_wrong_option_is_named_and_ends_with_2() {
    let bench = Bench::new("options");
    for (script, arguments, expected) in [
        ("compare.sh", &["--cases", "qos0,foo"][..], "--cases: there is no \"foo\"; there are qos0"),
        ("compare.sh", &["--servers", "emqx"], "--servers: there is no \"emqx\""),
        ("compare.sh", &["--rounds", "0"], "--rounds needs a whole number from 1 on, not \"0\""),
        ("compare.sh", &["--rounds", "abc"], "not \"abc\""),
        ("compare.sh", &["--keep"], "--keep needs a value"),
        ("scenarios.sh", &["--only", "nonsense"], "--only: there is no \"nonsense\"; there are echo"),
        ("million.sh", &["--connections", "abc"], "--connections needs a whole number"),
        ("vm.sh", &["--hlep"], "unknown option --hlep"),
        ("vm.sh", &["--cpus"], "--cpus needs a whole number"),
        ("kafka.sh", &["status", "--port"], "--port needs a whole number"),
    ] {
        let ended = bench.run(script, arguments);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{script} {arguments:?}: {said}");
        assert!(said.starts_with(&format!("{script}: ")) && said.contains(expected), "{script} {arguments:?}: {said}");
        assert!(said.contains(&format!("Usage: {script}")), "{said}");
    }
}

#[test]
fn help_is_what_the_script_says_of_itself_and_does_nothing() {
    let tuning = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning/apply.sh");
    let scripts = fs::read_dir(SCRIPTS).unwrap().map(|entry| entry.unwrap().path());
    // Those without a shebang are sourced by the others.
    let is_script = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "sh") && fs::read_to_string(path).unwrap().starts_with("#!")
    };
    let scripts: Vec<PathBuf> = scripts.filter(is_script).chain([tuning]).collect();
    assert!(scripts.len() > 15);
    for script in scripts {
        let ended = Command::new(&script).arg("--help").env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        let second = fs::read_to_string(&script).unwrap().lines().nth(1).unwrap().trim_start_matches("# ").to_owned();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{}: {ended:?}", script.display());
        assert!(String::from_utf8_lossy(&ended.stdout).starts_with(&second), "{}: {ended:?}", script.display());
    }
}

#[test]
fn a_limit_of_open_files_that_leaves_no_clients_is_an_error_that_says_so() {
    let bench = Bench::new("files");
    let script = format!("ulimit -n 256; exec {SCRIPTS}/scenarios.sh --only echo");
    let ended = Command::new("bash").args(["-c", &script]).env("CORELANE_BENCH_BIN", &bench.0).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the hard limit of open files is 256"), "{ended:?}");
}

#[test]
fn a_signal_ends_a_script_at_once_and_what_it_runs() {
    let bench = Bench::new("signal");
    let reports = bench.0.join("reports");
    let mut script = bench.command("scenarios.sh");
    script.args(["--only", "echo", "--connections", "10", "--reports", reports.to_str().unwrap()]);
    let mut script = script.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parent = format!(" S {} ", script.id());
    let runs = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let parents = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
        parents.filter(|stat| stat.contains("(timeout)") && stat.contains(&parent)).count()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while runs() == 0 {
        assert!(Instant::now() < deadline, "the run does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Instant::now();
    Command::new("kill").arg(script.id().to_string()).status().unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(143));
    assert!(sent.elapsed() < Duration::from_secs(20), "{:?}", sent.elapsed());
}

//! The command of the load generator.

use clap::{Args, Parser, Subcommand};
use corelane_bench::load::comparison;
use corelane_bench::load::conductor::{self, Settings};
use corelane_bench::load::library::{self, CASES, SCENARIOS};
use corelane_bench::load::scenario::Scenario;
use corelane_bench::load::socket;
use corelane_bench::load::{html, report::grouped};
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about = "MQTT load with latencies from the intended send time, and a report", after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 every check held, 1 one did not, 2 the run could not be made. SIGINT or SIGTERM ends a run early, with its report; a
second one at once, without.";

#[derive(Subcommand)]
enum Command {
    /// Run a scenario: one that `list` names, or a file
    Run {
        /// Its name, or the path of a TOML file
        scenario: String,
        #[command(flatten)]
        options: Options,
    },
    /// Run a case of the comparison of brokers and end with one line for scripts; the workers never sleep
    Case {
        /// Its name, or the path of a TOML file
        case: String,
        #[command(flatten)]
        options: Options,
    },
    /// The scenarios and cases that come with the program
    List,
    /// Print one of them, as a file to start from
    Show {
        /// Its name
        name: String,
    },
    /// The table of a comparison, from the lines that its cases printed (see scripts/compare.sh)
    Table {
        /// The file with the lines
        results: PathBuf,
    },
}

#[derive(Args)]
struct Options {
    /// The broker; several are used in turn
    #[arg(long, default_value = "127.0.0.1:1883", value_delimiter = ',')]
    address: Vec<SocketAddr>,
    /// Addresses to connect from: one, several with commas, or FIRST-LAST. By default as many loopback addresses as the ports
    /// need for a broker on loopback, else what the kernel chooses
    #[arg(long, value_parser = parse_sources, default_value = "")]
    source: Sources,
    /// The clients of the scaled groups are multiplied by this
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Measured phases of a fixed length last so long instead
    #[arg(long)]
    duration_s: Option<f64>,
    /// The phase with this name lasts so long instead: NAME=SECONDS
    #[arg(long, value_parser = parse_phase)]
    phase_s: Vec<(String, f64)>,
    /// Sample CPU and memory of this process
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    broker_pid: Option<u32>,
    /// Worker threads; by default one per core, and as many as the limit of open files asks for
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Workers never sleep, so that their wake-ups are not in the latencies
    #[arg(long)]
    spin: bool,
    /// Clients that wait for CONNACK at a time, so that no backlog overflows; by default nine tenths of net.core.somaxconn
    #[arg(long)]
    greeting: Option<u32>,
    /// Write everything that was measured
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the report as a page
    #[arg(long)]
    html: Option<PathBuf>,
    /// Add the kernel's memory for sockets, slab by cache, to the lines of progress; as root
    #[arg(long)]
    slab: bool,
    /// Kept in the report
    #[arg(long, default_value = "")]
    note: String,
    /// Seconds between two lines of progress; 0 is none
    #[arg(long)]
    progress_s: Option<u32>,
}

#[derive(Clone)]
struct Sources(Vec<IpAddr>);

fn parse_sources(text: &str) -> Result<Sources, String> {
    let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|error| format!("{text:?}: {error}"));
    let mut sources = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('-') {
            None => sources.push(address(part)?),
            Some((first, last)) => {
                let (IpAddr::V4(first), IpAddr::V4(last)) = (address(first)?, address(last)?) else {
                    return Err(format!("{part}: a range is of IPv4 addresses"));
                };
                let (first, last) = (u32::from(first), u32::from(last));
                if first > last || last - first >= 65_536 {
                    return Err(format!("{part}: the range is empty or has more than 65,536 addresses"));
                }
                sources.extend((first..=last).map(|number| IpAddr::V4(Ipv4Addr::from(number))));
            }
        }
    }
    Ok(Sources(sources))
}

fn parse_phase(text: &str) -> Result<(String, f64), String> {
    let (name, seconds) = text.split_once('=').ok_or("NAME=SECONDS is expected")?;
    let seconds = seconds.parse().map_err(|error| format!("{seconds:?}: {error}"))?;
    Ok((name.to_owned(), seconds))
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run { scenario, options } => run(SCENARIOS, &scenario, options, false),
        Command::Case { case, options } => run(CASES, &case, options, true),
        Command::List => print(&(list("scenarios", SCENARIOS) + &list("cases", CASES))).map(|()| true),
        Command::Show { name } => show(&name),
        Command::Table { results } => table(&results),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("corelane-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(from: &[(&str, &str)], name: &str, options: Options, is_case: bool) -> Result<bool, String> {
    if !(options.scale > 0.0 && options.scale <= 100.0) {
        return Err("--scale is above 0 and at most 100".to_owned());
    }
    let mut scenario = library::find(from, name)?.scaled(options.scale);
    if let Some(seconds) = options.duration_s {
        scenario = scenario.lasting(seconds);
    }
    for (phase, seconds) in options.phase_s {
        scenario = scenario.with_phase_lasting(&phase, seconds)?;
    }
    scenario.validate()?;
    // Before the run, which may take an hour: a file that cannot be written is known now.
    let json = options.json.as_deref().map(open).transpose()?;
    let page = options.html.as_deref().map(open).transpose()?;
    socket::catch_interrupts().map_err(|error| format!("signals: {error}"))?;
    let settings = Settings {
        addresses: options.address,
        sources: options.source.0,
        threads: options.threads,
        spin: options.spin || is_case,
        greeting: options.greeting,
        broker_pid: options.broker_pid,
        scale: options.scale,
        name: name.to_owned(),
        note: options.note,
        slab: options.slab,
        progress_s: options.progress_s.unwrap_or(u32::from(!is_case)),
    };
    let report = conductor::run(&scenario, &settings)?;
    print(&if is_case { report.line() + "\n" } else { report.table() + "\n" })?;
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n";
        replace(file, options.json.as_deref(), &text)?;
    }
    if let Some(file) = page {
        replace(file, options.html.as_deref(), &html::page(&report))?;
    }
    Ok(report.holds())
}

/// Opens a file for a report; what is in it stays until there is one.
fn open(path: &Path) -> Result<File, String> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.map_err(|error| format!("{}: {error}", path.display()))
}

fn replace(mut file: File, path: Option<&Path>, text: &str) -> Result<(), String> {
    // What is no plain file (a pipe, a terminal) is only written to.
    let is_plain = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let written = if is_plain { file.set_len(0).and_then(|()| file.rewind()) } else { Ok(()) };
    let written = written.and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.unwrap_or(Path::new("?")).display()))
}

/// To standard output, whose reader may have gone.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

fn table(results: &PathBuf) -> Result<bool, String> {
    let text = std::fs::read_to_string(results).map_err(|error| format!("{}: {error}", results.display()))?;
    let table = comparison::Table::of(&text)?;
    print(&table.to_string())?;
    Ok(table.all_met())
}

fn list(title: &str, library: &[(&str, &str)]) -> String {
    let mut out = format!("{title}:\n");
    for (name, text) in library {
        // A test holds that they all parse.
        if let Ok(scenario) = Scenario::parse(text) {
            out += &format!("  {name:<16} {:>12} clients  {}\n", grouped(scenario.clients()), scenario.description.trim());
        }
    }
    out
}

fn show(name: &str) -> Result<bool, String> {
    let found = SCENARIOS.iter().chain(CASES).find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| format!("{name}: no such scenario or case"))?;
    print(text).map(|()| true)
}

//! The conductor: starts the workers, leads them through a scenario's phases, watches the broker from outside, and makes the report.

use super::control::{Command, Control, Times, histogram};
use super::counts::{Count, Counts, Totals};
use super::plan::{Pace, Plan};
use super::report::{CheckResult, CpuCost, Percentiles, PhaseReport, Report, Sample, SearchStep};
use super::scenario::{Cost, Phase, Scenario, Search};
use super::slab::{self, SlabCost};
use super::socket::{self, now_ns};
use super::worker::Worker;
use crate::process;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct Settings {
    pub addresses: Vec<SocketAddr>,
    pub sources: Vec<IpAddr>,
    /// As many as there are cores, or as the file limit asks for.
    pub threads: Option<u32>,
    pub spin: bool,
    /// Clients that wait for CONNACK at a time; by default what a listener's backlog on this host has room for.
    pub greeting: Option<u32>,
    pub broker_pid: Option<u32>,
    pub scale: f64,
    pub name: String,
    /// Kept in the report: a commit, say.
    pub note: String,
    /// The lines of progress have the kernel's memory for sockets.
    pub slab: bool,
    /// Seconds between two progress lines; 0: none.
    pub progress_s: u32,
}

/// How often the end of a phase is looked for.
const LOOK: Duration = Duration::from_millis(2);
const SAMPLE_NS: u64 = 1_000_000_000;
/// Longest wait, after a measured phase, for messages that are still on their way.
const DRAIN_NS: u64 = 10_000_000_000;
/// When a run ends in which every connect has failed.
const NOBODY_NS: u64 = 10_000_000_000;
/// Steps of a search: a rate that nothing bounds would grow forever.
const STEPS_MAX: usize = 60;
/// Files of a thread that are no connections.
const FILES_BESIDE: u64 = 64;
/// Before memory is read: the kernel frees lazily, and so may the broker's allocator.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs a scenario, already scaled, to its end.
pub fn run(scenario: &Scenario, settings: &Settings) -> Result<Report, String> {
    let io = |what: &'static str| move |error| format!("{what}: {error}");
    let limit = process::raise_file_limit().map_err(io("the file limit"))?;
    let cores = socket::allowed_cores().map_err(io("the affinity mask"))?;
    let clients = scenario.clients();
    let per_thread = limit.saturating_sub(FILES_BESIDE).max(1);
    let needed = u32::try_from(clients.div_ceil(per_thread)).map_err(|_| "too many clients".to_owned())?;
    let mut threads = settings.threads.unwrap_or(cores.len() as u32).max(needed).max(1);
    if scenario.is_bound_to_one_worker() && threads > 1 {
        if needed > 1 || settings.threads.is_some() {
            return Err(format!(
                "a closed loop (window) with several receivers of a message runs on one thread, which may have {per_thread} clients here; these are {clients} on {threads}"
            ));
        }
        threads = 1;
    }
    let broker = settings.broker_pid.map(command_line).transpose()?.unwrap_or_default();
    let sources = if settings.sources.is_empty() { own_sources(&settings.addresses, clients) } else { settings.sources.clone() };
    let mut plan = Plan::new(scenario, settings.addresses.clone(), sources, threads)?;
    plan.spin = settings.spin;
    plan.greeting_max = (settings.greeting.unwrap_or_else(greeting) / threads).max(1);
    let control = Control::new(threads as usize, plan.groups.len());

    std::thread::scope(|scope| {
        let (plan, control) = (&plan, &control);
        let mut workers = Vec::new();
        for number in 0..threads {
            let core = cores[number as usize % cores.len()];
            let body = move || {
                let result = socket::pin_to(core)
                    .map_err(io("pinning"))
                    .and_then(|()| match socket::own_file_table() {
                        Err(error) if needed > 1 => Err(format!(
                            "{clients} clients need {needed} file tables of {limit} files, and unshare(CLONE_FILES) fails: {error}; raise the file limit"
                        )),
                        _ => Ok(()),
                    })
                    .and_then(|()| Worker::new(plan, control, number).and_then(|mut worker| worker.run()).map_err(io("a worker")));
                if result.is_err() {
                    control.failed.store(true, Ordering::Release);
                }
                result
            };
            let named = std::thread::Builder::new().name(format!("load-{number}"));
            match named.spawn_scoped(scope, body) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    control.give(Command { quit: true, ..Command::default() });
                    return Err(format!("a thread: {error}"));
                }
            }
        }
        let mut conductor = Conductor::new(scenario, settings, plan, control, broker);
        let result = conductor.conduct();
        control.give(Command { quit: true, ..Command::default() });
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked".to_owned())??;
        }
        result
    })
}

/// Loopback addresses to connect from when one has too few ports for so many clients.
fn own_sources(addresses: &[SocketAddr], clients: u64) -> Vec<IpAddr> {
    let ports = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ports: Vec<u64> = ports.split_whitespace().filter_map(|port| port.parse().ok()).collect();
    // A connect takes every second port first. Once those are gone the kernel looks at thousands of ports for each connect, so a source
    // is used for fewer than half of them: some are in use by others, or linger.
    let range = match ports[..] {
        [low, high] => high.saturating_sub(low).max(10) * 4 / 10,
        _ => 10_000,
    };
    let sources = clients.div_ceil(range * addresses.len().max(1) as u64);
    if sources <= 1 || !addresses.iter().all(|address| address.ip().is_loopback() && address.is_ipv4()) {
        return Vec::new();
    }
    (0..sources).map(|number| IpAddr::V4(Ipv4Addr::from(0x7F00_0002 + number as u32))).collect()
}

/// So many connects that a listener with the longest backlog that this kernel allows drops none of them: a dropped one comes back
/// after 1, 3, 7 seconds, and the kernel's timer would be measured instead of the broker.
fn greeting() -> u32 {
    let longest = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    longest.trim().parse().unwrap_or(4096) / 10 * 9
}

/// What is known at one moment.
struct Moment {
    at_ns: u64,
    totals: Totals,
    cpu_ns: Option<u64>,
    threads_cpu_ns: BTreeMap<String, u64>,
}

impl Moment {
    /// CPU seconds since an earlier moment by the names of threads.
    fn threads_cpu_s(&self, before: &Moment) -> BTreeMap<String, f64> {
        let since = |(name, &ns): (&String, &u64)| {
            let before_ns = before.threads_cpu_ns.get(name).copied().unwrap_or(0);
            (name.clone(), ns.saturating_sub(before_ns) as f64 / 1e9)
        };
        self.threads_cpu_ns.iter().map(since).collect()
    }
}

struct Conductor<'a> {
    scenario: &'a Scenario,
    settings: &'a Settings,
    plan: &'a Plan,
    control: &'a Control,
    began_ns: u64,
    samples: Vec<Sample>,
    last: Moment,
    phase: String,
    terminal: bool,
    /// The command line of the broker, while it had one.
    broker: String,
}

impl<'a> Conductor<'a> {
    fn new(scenario: &'a Scenario, settings: &'a Settings, plan: &'a Plan, control: &'a Control, broker: String) -> Self {
        let last = Moment { at_ns: now_ns(), totals: Totals::default(), cpu_ns: None, threads_cpu_ns: BTreeMap::new() };
        let (began_ns, terminal) = (last.at_ns, std::io::stderr().is_terminal());
        let samples = Vec::with_capacity(4096);
        Self { scenario, settings, plan, control, began_ns, samples, last, phase: String::new(), terminal, broker }
    }

    fn conduct(&mut self) -> Result<Report, String> {
        let started_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.last = self.moment();
        let mut phases = Vec::new();
        let mut steps = Vec::new();
        let mut slabs = Vec::new();
        for phase in &self.scenario.phases {
            if socket::is_interrupted() {
                break;
            }
            self.phase.clone_from(&phase.name);
            match &phase.search {
                Some(search) => {
                    let (found, best) = self.search(phase, search)?;
                    steps.extend(found);
                    phases.extend(best);
                }
                None => phases.push(self.perform(phase, 1.0)?),
            }
            if self.scenario.cost == Cost::Idle
                && phase.measure
                && let Some(report) = phases.last_mut()
            {
                std::thread::sleep(SETTLE);
                report.resident_bytes = self.settings.broker_pid.and_then(|pid| process::resident_bytes(pid).ok());
                slabs.push((report.connections, process::slab_caches().unwrap_or_default()));
            }
        }
        self.sample();
        if self.terminal && self.settings.progress_s > 0 {
            eprintln!();
        }
        let totals = self.totals();
        let slab = match &slabs[..] {
            [first, .., last] => Some(slab::between(first, last)),
            _ => None,
        };
        let mut report = Report {
            scenario: self.settings.name.clone(),
            description: self.scenario.description.trim().to_owned(),
            source: self.scenario.source.trim().to_owned(),
            note: self.settings.note.clone(),
            scale: self.settings.scale,
            addresses: self.settings.addresses.iter().map(ToString::to_string).collect(),
            started_s,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            broker: self.broker.clone(),
            threads: self.plan.workers,
            clients: self.scenario.clients(),
            interrupted: socket::is_interrupted(),
            cost: cost(self.scenario.cost, &phases, slab.as_ref()),
            phases,
            search: steps,
            slab,
            due: totals.get(Count::Due),
            sent: totals.get(Count::Sent),
            wanted: totals.get(Count::Wanted),
            received: totals.get(Count::Received),
            lost: totals.get(Count::Wanted).saturating_sub(totals.get(Count::Received)),
            duplicates: totals.get(Count::Duplicates),
            out_of_order: totals.get(Count::OutOfOrder),
            too_late: totals.get(Count::TooLate),
            foreign: totals.get(Count::Foreign),
            unsent: totals.get(Count::Due).saturating_sub(totals.get(Count::Sent)),
            unacknowledged: totals.get(Count::Acknowledgeable).saturating_sub(totals.get(Count::Acknowledged)),
            refused: totals.get(Count::Refused) + totals.get(Count::SubscriptionsRefused),
            connected: totals.get(Count::Connected),
            sessions_present: totals.get(Count::SessionsPresent),
            failed: totals.get(Count::Failed),
            dropped: totals.get(Count::Dropped),
            first_loss: self.control.first_loss().map(str::to_owned),
            wills_due: totals.get(Count::WillsDue),
            wills: totals.get(Count::Wills),
            pings: totals.get(Count::Pings),
            pongs: totals.get(Count::Pongs),
            samples: std::mem::take(&mut self.samples),
            checks: Vec::new(),
        };
        report.checks = self.check(&report, &totals);
        Ok(report)
    }

    fn totals(&self) -> Totals {
        Totals::of(self.control.counts.iter())
    }

    fn moment(&self) -> Moment {
        let cpu_ns = self.settings.broker_pid.and_then(|pid| process::cpu_ns(pid).ok());
        let threads_cpu_ns = self.settings.broker_pid.and_then(|pid| process::threads_cpu_ns(pid).ok()).unwrap_or_default();
        Moment { at_ns: now_ns(), totals: self.totals(), cpu_ns, threads_cpu_ns }
    }

    fn mask(&self, names: &[String]) -> u64 {
        names.iter().filter_map(|name| self.scenario.group(name)).fold(0, |mask, group| mask | 1 << group)
    }

    fn up(&self, group: usize) -> u64 {
        self.control.counts.iter().map(|counts| counts.up(group)).sum()
    }

    fn all_up(&self) -> u64 {
        (0..self.plan.groups.len()).map(|group| self.up(group)).sum()
    }

    /// One phase from its command to its end; a measured one until what it measured has been handed over.
    fn perform(&mut self, phase: &Phase, rate: f64) -> Result<PhaseReport, String> {
        let before = self.moment();
        let publish = self.mask(&phase.publish);
        self.control.give(Command {
            at_ns: before.at_ns,
            connect: self.mask(&phase.connect),
            publish,
            reset: self.mask(&phase.reset),
            measure: phase.measure,
            rate,
            searched: phase.search.as_ref().and_then(|search| self.scenario.group(&search.group)).map_or(0, |group| 1 << group),
            ..Command::default()
        });
        self.take_up()?;
        let connect: Vec<usize> = phase.connect.iter().filter_map(|name| self.scenario.group(name)).collect();
        let patience_s = phase.seconds.unwrap_or(phase.patience_s + self.ramp_s(&connect));
        let deadline_ns = before.at_ns + (patience_s * 1e9) as u64;
        let in_time = self.until(deadline_ns, |conductor| {
            if phase.seconds.is_some() {
                return false;
            }
            let connected = connect.iter().all(|&group| conductor.up(group) == u64::from(conductor.plan.groups[group].count));
            connected && (!connect.is_empty() || conductor.is_done(publish))
        })?;
        let after = self.moment();
        let latest = |of: fn(&Counts) -> u64| {
            let latest_ns = self.control.counts.iter().map(of).max().unwrap_or(0);
            (latest_ns > before.at_ns).then(|| (latest_ns - before.at_ns) as f64 / 1e9)
        };
        let mut report = PhaseReport {
            name: phase.name.clone(),
            began_s: (before.at_ns - self.began_ns) as f64 / 1e9,
            measured: phase.measure,
            complete: (phase.seconds.is_some() || in_time) && !socket::is_interrupted(),
            published: publish != 0,
            seconds: (after.at_ns - before.at_ns) as f64 / 1e9,
            connections: self.all_up(),
            connected: after.totals.since(&before.totals, Count::Connected),
            connected_after_s: latest(|counts| counts.last_connected_ns.load(Ordering::Relaxed)),
            received_after_s: None,
            sent: after.totals.since(&before.totals, Count::Sent),
            due: after.totals.since(&before.totals, Count::Due),
            wanted: after.totals.since(&before.totals, Count::Wanted),
            received: after.totals.since(&before.totals, Count::Received),
            broker_cpu_s: after.cpu_ns.zip(before.cpu_ns).map(|(after, before)| after.saturating_sub(before) as f64 / 1e9),
            broker_threads_cpu_s: after.threads_cpu_s(&before),
            resident_bytes: self.settings.broker_pid.and_then(|pid| process::resident_bytes(pid).ok()),
            delivery: None,
            response: None,
            connect: None,
        };
        if phase.measure {
            self.control.give(Command { at_ns: after.at_ns, ..Command::default() });
            self.take_up()?;
            let drain_until_ns = after.at_ns + DRAIN_NS;
            self.until(drain_until_ns, |conductor| conductor.is_done(u64::MAX))?;
            self.control.give(Command { at_ns: now_ns(), collect: true, ..Command::default() });
            self.take_up()?;
            let mut collected = self.control.collected.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let Times { delivery, response, connect } = &*collected;
            report.delivery = Percentiles::of(delivery);
            report.response = Percentiles::of(response);
            report.connect = Percentiles::of(connect);
            collected.reset();
        }
        let latest_ns = self.control.counts.iter().map(|counts| counts.last_received_ns.load(Ordering::Relaxed)).max();
        report.received_after_s =
            latest_ns.filter(|&latest_ns| latest_ns > before.at_ns).map(|latest_ns| (latest_ns - before.at_ns) as f64 / 1e9);
        Ok(report)
    }

    /// How long the slowest of these groups takes to begin its connects.
    fn ramp_s(&self, groups: &[usize]) -> f64 {
        groups
            .iter()
            .map(|&group| &self.plan.groups[group])
            .map(|group| f64::from(group.count) * group.connect_gap_ns / 1e9)
            .fold(0.0, f64::max)
    }

    /// Everything that these groups have to send has been sent, and all of it has arrived and been acknowledged, wills too.
    fn is_done(&self, publish: u64) -> bool {
        let publishing = self.control.counts.iter().fold(0, |all, counts| all | counts.publishing());
        let totals = self.totals();
        publishing & publish == 0
            && totals.get(Count::Sent) + totals.get(Count::Unsent) >= totals.get(Count::Due)
            && totals.get(Count::Received) >= totals.get(Count::Wanted)
            && totals.get(Count::Acknowledged) >= totals.get(Count::Acknowledgeable)
            && (!self.scenario.check.wills || totals.get(Count::Wills) >= totals.get(Count::WillsDue))
    }

    fn take_up(&mut self) -> Result<(), String> {
        let deadline_ns = now_ns() + 60_000_000_000;
        if self.until(deadline_ns, |conductor| conductor.control.taken_up())? {
            Ok(())
        } else {
            Err("a worker does not answer".to_owned())
        }
    }

    /// Waits, with a sample each second; whether the end came before the deadline, and before somebody ended the run.
    fn until(&mut self, deadline_ns: u64, ended: impl Fn(&Self) -> bool) -> Result<bool, String> {
        loop {
            if self.control.failed.load(Ordering::Acquire) {
                return Err("a worker failed".to_owned());
            }
            if ended(self) {
                return Ok(true);
            }
            let now_ns = now_ns();
            if now_ns >= deadline_ns || (socket::is_interrupted() && self.control.taken_up()) {
                return Ok(false);
            }
            self.give_up_on_nobody(now_ns)?;
            if now_ns >= self.last.at_ns + SAMPLE_NS {
                self.sample();
            }
            std::thread::sleep(LOOK.min(Duration::from_nanos(deadline_ns - now_ns)));
        }
    }

    /// A run in which every connect has failed for a while is not worth its patience.
    fn give_up_on_nobody(&self, now_ns: u64) -> Result<(), String> {
        if now_ns < self.began_ns + NOBODY_NS {
            return Ok(());
        }
        let totals = self.totals();
        match self.control.first_loss() {
            Some(why) if totals.get(Count::Connected) == 0 => {
                let addresses: Vec<_> = self.settings.addresses.iter().map(ToString::to_string).collect();
                let failed = totals.get(Count::Failed);
                Err(format!("no client has come in at {}; {failed} connects failed, the first with: {why}", addresses.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn sample(&mut self) {
        let now = self.moment();
        let mut interval = self.control.interval.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let delivery = std::mem::replace(&mut *interval, histogram(2));
        drop(interval);
        let seconds = (now.at_ns - self.last.at_ns).max(1) as f64 / 1e9;
        let rate = |count| now.totals.since(&self.last.totals, count) as f64 / seconds;
        let quantile = |quantile| (!delivery.is_empty()).then(|| delivery.value_at_quantile(quantile) as f64 / 1e6);
        let sample = Sample {
            at_s: (now.at_ns - self.began_ns) as f64 / 1e9,
            phase: self.phase.clone(),
            connections: self.all_up(),
            connects_per_s: rate(Count::Connected),
            failed: now.totals.get(Count::Failed),
            dropped: now.totals.get(Count::Dropped),
            sent_per_s: rate(Count::Sent),
            received_per_s: rate(Count::Received),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            broker_cpu_percent: now
                .cpu_ns
                .zip(self.last.cpu_ns)
                .map(|(now, last)| now.saturating_sub(last) as f64 / 1e7 / seconds),
            broker_resident_bytes: self.settings.broker_pid.and_then(resident_pages),
        };
        self.last = now;
        self.show(&sample);
        self.samples.push(sample);
    }

    fn show(&self, sample: &Sample) {
        let every = self.settings.progress_s as usize;
        if every == 0 || !self.samples.len().is_multiple_of(every) {
            return;
        }
        let mut line = sample.line(self.scenario.clients());
        if self.settings.slab
            && let Ok(caches) = process::slab_caches()
        {
            line += &slab::line(&caches);
        }
        // A terminal shows one line that changes, a file each.
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// The highest rate that holds: every step, and the report of the best.
    fn search(&mut self, phase: &Phase, search: &Search) -> Result<(Vec<SearchStep>, Option<PhaseReport>), String> {
        let mut steps = Vec::new();
        let mut best = None;
        let (mut holds, mut fails) = (0.0, f64::INFINITY);
        let mut bisections = 0;
        let mut rate = 1.0;
        loop {
            self.phase = format!("{} ×{rate:.2}", phase.name);
            let named = Phase { name: self.phase.clone(), ..phase.clone() };
            let report = self.perform(&named, rate)?;
            let step = self.judge(&report, search, rate);
            if step.holds {
                holds = rate;
                best = Some(report);
            } else {
                fails = rate;
            }
            steps.push(step);
            if fails.is_infinite() {
                rate *= search.factor;
            } else if holds == 0.0 {
                rate /= search.factor;
            } else {
                bisections += 1;
                rate = (holds * fails).sqrt();
            }
            let is_over = steps.len() >= STEPS_MAX || !(1e-3..1e9).contains(&rate) || socket::is_interrupted();
            if bisections > search.bisections || is_over {
                return Ok((steps, best));
            }
        }
    }

    fn judge(&self, report: &PhaseReport, search: &Search, rate: f64) -> SearchStep {
        let publish = self.scenario.group(&search.group).and_then(|group| self.plan.groups[group].publish.as_ref());
        let due = publish.map_or(0.0, |publish| match publish.pace {
            Pace::Open { every_ns } => f64::from(publish.publishers) * report.seconds * 1e9 / every_ns * rate,
            Pace::Closed { .. } => 0.0,
        });
        let copies = publish.map_or(0.0, |publish| f64::from(publish.copies));
        let part = (report.sent as f64 / due.max(1.0)).min(report.received as f64 / (due * copies).max(1.0));
        let mean_response_ms = report.response.as_ref().map(|response| response.mean_ms);
        let p99_ms = report.delivery.as_ref().map(|delivery| delivery.p99_ms);
        let within = |bound: Option<f64>, value: Option<f64>| bound.is_none_or(|bound| value.is_some_and(|value| value <= bound));
        SearchStep {
            phase: report.name.clone(),
            due_per_s: due / report.seconds,
            received_per_s: report.received as f64 / report.seconds,
            mean_response_ms,
            p99_ms,
            broker_cpu_percent: report.cpu_percent(),
            holds: part >= search.received && within(search.mean_response_ms, mean_response_ms) && within(search.p99_ms, p99_ms),
        }
    }

    fn check(&self, report: &Report, totals: &Totals) -> Vec<CheckResult> {
        let check = &self.scenario.check;
        let mut results = Vec::new();
        let mut at_most = |what: &str, value: f64, bound: f64| {
            if bound.is_finite() {
                results.push(CheckResult { what: what.to_owned(), value, bound, holds: value <= bound });
            }
        };
        let silent = |phase: &&PhaseReport| phase.measured && phase.published && phase.sent == 0;
        at_most("measured phases in which nothing was published", report.phases.iter().filter(silent).count() as f64, 0.0);
        let searches = self.scenario.phases.iter().filter(|phase| phase.search.is_some());
        let in_vain = searches.filter(|phase| {
            // The steps of a search have its phase's name with the rate behind it.
            !report.search.iter().any(|step| step.holds && step.phase.starts_with(&format!("{} ×", phase.name)))
        });
        let in_vain_count = in_vain.count();
        at_most("searches in which no rate holds", in_vain_count as f64, 0.0);
        at_most("messages lost", report.lost as f64, check.lost);
        at_most("messages that were not published like this", report.foreign as f64, 0.0);
        at_most("messages received more than published", report.received.saturating_sub(report.wanted) as f64, 0.0);
        at_most("messages not acknowledged", report.unacknowledged as f64, check.unacknowledged);
        at_most("duplicates", report.duplicates as f64, check.duplicates);
        at_most("messages out of order", report.out_of_order as f64, check.out_of_order);
        at_most("connections failed or dropped", (report.failed + report.dropped) as f64, check.failures);
        at_most("messages or subscriptions refused", report.refused as f64, 0.0);
        at_most("clients not connected at the end", report.clients.saturating_sub(self.all_up()) as f64, 0.0);
        let missing = self.scenario.phases.len().saturating_sub(report.phases.len() + in_vain_count);
        let incomplete = report.phases.iter().filter(|phase| !phase.complete).count() + missing;
        at_most("phases not completed", incomplete as f64, 0.0);
        if self.scenario.cost == Cost::Idle {
            // Without --broker-pid nobody knows, and what nobody knows does not hold.
            let bytes = report.cost.as_ref().map_or(f64::NAN, |cost| cost.value);
            at_most("resident bytes per connection", bytes, check.resident_bytes);
        }
        let unanswered = report.pings.saturating_sub(report.pongs) as f64 / report.pings.max(1) as f64;
        at_most("part of the pings not answered", unanswered, check.unanswered_pings);
        if check.sessions {
            let missing = totals.get(Count::Resets).saturating_sub(report.sessions_present);
            at_most("sessions lost", missing as f64, 0.0);
        }
        if check.wills {
            at_most("wills lost", report.wills_due.saturating_sub(report.wills) as f64, 0.0);
        }
        let worst = |of: fn(&Percentiles) -> f64| {
            report.phases.iter().filter_map(|phase| phase.delivery.as_ref()).map(of).fold(0.0, f64::max)
        };
        at_most("p99 of the delivery time, ms", worst(|delivery| delivery.p99_ms), check.p99_ms);
        at_most("mean delivery time, ms", worst(|delivery| delivery.mean_ms), check.mean_ms);
        let unsent = report.unsent as f64 / report.due.max(1) as f64;
        at_most("part of the due messages not sent", unsent, check.unsent);
        results
    }
}

/// The broker's CPU by what the scenario divides it by, over the measured phases.
fn cost(cost: Cost, phases: &[PhaseReport], slab: Option<&SlabCost>) -> Option<CpuCost> {
    let measured = || phases.iter().filter(|phase| phase.measured);
    if cost == Cost::Idle {
        let (first, last) = (measured().next()?, measured().next_back()?);
        let connections = last.connections.checked_sub(first.connections).filter(|&connections| connections > 0)?;
        let bytes = last.resident_bytes? as f64 - first.resident_bytes? as f64;
        let per = format!("resident bytes per connection, {} to {}", first.connections, last.connections);
        return Some(CpuCost { per, value: bytes / connections as f64, kernel_bytes: slab.map(|slab| slab.broker_bytes) });
    }
    let cpu_s: f64 = measured().map(|phase| phase.broker_cpu_s).sum::<Option<f64>>()?;
    let sum = |of: fn(&PhaseReport) -> u64| measured().map(of).sum::<u64>();
    let (per, units) = match cost {
        Cost::Delivery => ("CPU seconds per million deliveries", sum(|phase| phase.received)),
        Cost::Connection => ("CPU microseconds per connection", sum(|phase| phase.connected)),
        _ => ("CPU seconds per million messages in and out", sum(|phase| phase.sent + phase.received)),
    };
    (units > 0).then(|| CpuCost { per: per.to_owned(), value: cpu_s * 1e6 / units as f64, kernel_bytes: None })
}

fn command_line(pid: u32) -> Result<String, String> {
    let bytes =
        std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|error| format!("--broker-pid {pid}: no such process: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " "))
}

/// Resident bytes from `statm`: cheap for a process of any size, exact to a few pages per thread.
fn resident_pages(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

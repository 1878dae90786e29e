//! What a run says at its end: a table, one line for scripts, and everything as JSON.

use super::slab::SlabCost;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Serialize, Debug)]
pub struct Report {
    pub scenario: String,
    pub description: String,
    pub source: String,
    pub note: String,
    pub scale: f64,
    pub addresses: Vec<String>,
    /// Unix time.
    pub started_s: u64,
    pub kernel: String,
    /// The broker's command line.
    pub broker: String,
    pub threads: u32,
    pub clients: u64,
    /// Somebody ended it before its end.
    pub interrupted: bool,
    pub cost: Option<CpuCost>,
    pub phases: Vec<PhaseReport>,
    pub search: Vec<SearchStep>,
    pub slab: Option<SlabCost>,
    pub due: u64,
    pub sent: u64,
    pub wanted: u64,
    pub received: u64,
    pub lost: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    /// Received so long after later ones that they may be duplicates; not among `received`.
    pub too_late: u64,
    /// Received, and not what anybody published to that receiver; not among `received`.
    pub foreign: u64,
    pub unsent: u64,
    pub unacknowledged: u64,
    pub refused: u64,
    pub connected: u64,
    pub sessions_present: u64,
    pub failed: u64,
    pub dropped: u64,
    /// Why the first connection was lost, or not made.
    pub first_loss: Option<String>,
    pub wills_due: u64,
    pub wills: u64,
    pub pings: u64,
    pub pongs: u64,
    pub checks: Vec<CheckResult>,
    pub samples: Vec<Sample>,
}

#[derive(Serialize, Debug)]
pub struct CpuCost {
    pub per: String,
    pub value: f64,
    /// Kernel bytes per connection of the broker's end, where memory is what is asked for.
    pub kernel_bytes: Option<f64>,
}

#[derive(Serialize, Debug)]
pub struct PhaseReport {
    pub name: String,
    pub began_s: f64,
    pub measured: bool,
    /// It came to its own end, not to that of its patience.
    pub complete: bool,
    /// It has groups that publish.
    pub published: bool,
    pub seconds: f64,
    /// Up at its end.
    pub connections: u64,
    /// Came up within it.
    pub connected: u64,
    /// When the last connection came up, and the last message arrived, from the phase's begin.
    pub connected_after_s: Option<f64>,
    pub received_after_s: Option<f64>,
    pub due: u64,
    pub sent: u64,
    pub wanted: u64,
    pub received: u64,
    pub broker_cpu_s: Option<f64>,
    /// The same by the names of its threads.
    pub broker_threads_cpu_s: BTreeMap<String, f64>,
    pub resident_bytes: Option<u64>,
    pub delivery: Option<Percentiles>,
    pub response: Option<Percentiles>,
    pub connect: Option<Percentiles>,
}

impl PhaseReport {
    pub fn cpu_percent(&self) -> Option<f64> {
        self.broker_cpu_s.map(|cpu_s| cpu_s / self.seconds.max(1e-9) * 100.0)
    }
}

/// Times in milliseconds.
#[derive(Serialize, Debug)]
pub struct Percentiles {
    pub count: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
    /// Quantiles and times, for a plot.
    pub curve: Vec<(f64, f64)>,
}

impl Percentiles {
    /// `None` of an empty histogram.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
        // Ten points between two nines, as far as there are messages for it.
        let points = (0..=60).map(|step| 1.0 - 10f64.powf(-f64::from(step) / 10.0));
        let curve = points.take_while(|quantile| (1.0 - quantile) * histogram.len() as f64 >= 1.0).map(|q| (q, at(q))).collect();
        Some(Self {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e6,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1e6,
            curve,
        })
    }
}

#[derive(Serialize, Debug)]
pub struct SearchStep {
    pub phase: String,
    pub due_per_s: f64,
    pub received_per_s: f64,
    pub mean_response_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub broker_cpu_percent: Option<f64>,
    pub holds: bool,
}

#[derive(Serialize, Debug)]
pub struct CheckResult {
    pub what: String,
    pub value: f64,
    pub bound: f64,
    pub holds: bool,
}

impl CheckResult {
    /// What could not be measured is not a number, and does not hold.
    pub fn value_text(&self) -> String {
        if self.value.is_nan() { "not known".to_owned() } else { significant(self.value) }
    }
}

/// One second of a run.
#[derive(Serialize, Debug)]
pub struct Sample {
    pub at_s: f64,
    pub phase: String,
    pub connections: u64,
    pub connects_per_s: f64,
    /// So far.
    pub failed: u64,
    pub dropped: u64,
    pub sent_per_s: f64,
    pub received_per_s: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub broker_cpu_percent: Option<f64>,
    pub broker_resident_bytes: Option<u64>,
}

impl Sample {
    pub fn line(&self, clients: u64) -> String {
        let mut line = format!(
            "{:>6.0} s  {:<14} up {}/{} (+{}/s)  out {}/s  in {}/s",
            self.at_s,
            self.phase,
            grouped(self.connections),
            grouped(clients),
            grouped(self.connects_per_s as u64),
            grouped(self.sent_per_s as u64),
            grouped(self.received_per_s as u64),
        );
        if let Some(p99) = self.p99_ms {
            let _ = write!(line, "  p99 {} ms", significant(p99));
        }
        if let Some(cpu) = self.broker_cpu_percent {
            let _ = write!(line, "  broker {cpu:.0} %");
        }
        if let Some(bytes) = self.broker_resident_bytes {
            let _ = write!(line, " {} MB", bytes >> 20);
        }
        if self.failed + self.dropped > 0 {
            let _ = write!(line, "  failed {} dropped {}", grouped(self.failed), grouped(self.dropped));
        }
        line
    }
}

impl Report {
    pub fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    /// One line of `name=value`, for scripts. Latencies are those of the last measured phase.
    pub fn line(&self) -> String {
        let mut line = format!("case={}", self.scenario);
        let measured = || self.phases.iter().filter(|phase| phase.measured);
        if let Some(cost) = &self.cost {
            let _ = write!(line, " cost={:.4}", cost.value);
            if let Some(bytes) = cost.kernel_bytes {
                let _ = write!(line, " kernel={bytes:.0}");
            }
        }
        if let Some(phase) = measured().next_back() {
            let seconds = phase.seconds.max(1e-9);
            let _ = write!(line, " sent_s={:.0} received_s={:.0}", phase.sent as f64 / seconds, phase.received as f64 / seconds);
            if let Some(cpu) = phase.cpu_percent() {
                let _ = write!(line, " cpu_percent={cpu:.1}");
            }
            if let Some(delivery) = &phase.delivery {
                let _ = write!(
                    line,
                    " mean_us={:.1} p50_us={:.1} p99_us={:.1} p999_us={:.1}",
                    delivery.mean_ms * 1e3,
                    delivery.p50_ms * 1e3,
                    delivery.p99_ms * 1e3,
                    delivery.p999_ms * 1e3
                );
            }
            if let Some(seconds) = phase.connected_after_s {
                let _ = write!(line, " up_s={seconds:.3}");
            }
        }
        let _ = write!(
            line,
            " lost={} duplicates={} out_of_order={} failures={} checks={}",
            self.lost,
            self.duplicates,
            self.out_of_order,
            self.failed + self.dropped,
            if self.holds() { "pass" } else { "fail" }
        );
        line
    }

    /// The tables that a run ends with.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{}, {} clients on {} threads\n{}",
            self.title(),
            grouped(self.clients),
            self.threads,
            self.description
        );
        let _ = writeln!(
            out,
            "\n{:<22} {:>8} {:>11} {:>10} {:>12} {:>12} {:>13} {:>8} {:>9}",
            "phase", "seconds", "up", "up after", "out/s", "in/s", "last in after", "CPU %", "resident"
        );
        for phase in &self.phases {
            let seconds = phase.seconds.max(1e-9);
            let _ = writeln!(
                out,
                "{:<22} {:>8.1} {:>11} {:>10} {:>12} {:>12} {:>13} {:>8} {:>9}{}",
                phase.name,
                phase.seconds,
                grouped(phase.connections),
                phase.connected_after_s.map_or_else(String::new, |seconds| format!("{seconds:.2} s")),
                grouped((phase.sent as f64 / seconds) as u64),
                grouped((phase.received as f64 / seconds) as u64),
                phase.received_after_s.map_or_else(String::new, |seconds| format!("{seconds:.2} s")),
                phase.cpu_percent().map_or_else(String::new, |percent| format!("{percent:.1}")),
                phase.resident_bytes.map_or_else(String::new, |bytes| format!("{:.1} MB", bytes as f64 / (1 << 20) as f64)),
                if phase.complete { "" } else { "  not complete" },
            );
        }
        let mut rows = Vec::new();
        for phase in &self.phases {
            for (what, times) in [("delivery", &phase.delivery), ("response", &phase.response), ("connect", &phase.connect)] {
                rows.extend(times.as_ref().map(|times| (format!("{}: {what}", phase.name), times)));
            }
        }
        if !rows.is_empty() {
            let _ = writeln!(
                out,
                "\n{:<30} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "times in ms", "count", "mean", "p50", "p90", "p99", "p99.9", "max"
            );
        }
        for (name, times) in rows {
            let _ = write!(out, "{name:<30} {:>12}", grouped(times.count));
            for ms in [times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.p999_ms, times.max_ms] {
                let _ = write!(out, " {:>9}", significant(ms));
            }
            out.push('\n');
        }
        if !self.search.is_empty() {
            let _ = writeln!(
                out,
                "\n{:<22} {:>12} {:>12} {:>14} {:>9} {:>7}",
                "search", "due/s", "in/s", "mean response", "p99", "CPU %"
            );
        }
        for step in &self.search {
            let optional = |value: Option<f64>| value.map_or_else(String::new, significant);
            let _ = writeln!(
                out,
                "{:<22} {:>12} {:>12} {:>14} {:>9} {:>7} {}",
                step.phase,
                grouped(step.due_per_s as u64),
                grouped(step.received_per_s as u64),
                optional(step.mean_response_ms),
                optional(step.p99_ms),
                optional(step.broker_cpu_percent),
                if step.holds { "holds" } else { "does not hold" }
            );
        }
        let _ = writeln!(out, "\n{}", self.messages());
        if let Some(cost) = &self.cost {
            let _ = writeln!(out, "{}: {}", cost.per, significant(cost.value));
        }
        if let Some(slab) = &self.slab {
            let caches: Vec<_> = slab.caches.iter().map(|(name, bytes)| format!("{name} {bytes:.0}")).collect();
            let _ = writeln!(out, "kernel bytes per connection, broker's end: {:.0} ({})", slab.broker_bytes, caches.join(", "));
        }
        for check in &self.checks {
            let verdict = if check.holds { "PASS" } else { "FAIL" };
            let _ = writeln!(out, "{verdict}  {}: {}, at most {}", check.what, check.value_text(), significant(check.bound));
        }
        out
    }

    pub fn title(&self) -> String {
        if self.scale == 1.0 { self.scenario.clone() } else { format!("{} at scale {}", self.scenario, self.scale) }
    }

    /// What became of all messages and connections.
    pub fn messages(&self) -> String {
        let mut text = format!(
            "due {}, sent {}, to be received {}, received {}, lost {}, duplicates {}, out of order {}",
            grouped(self.due),
            grouped(self.sent),
            grouped(self.wanted),
            grouped(self.received),
            grouped(self.lost),
            grouped(self.duplicates),
            grouped(self.out_of_order),
        );
        let mut optional = |what: &str, value: u64| {
            if value > 0 {
                let _ = write!(text, ", {what} {}", grouped(value));
            }
        };
        optional("not sent", self.unsent);
        optional("not acknowledged", self.unacknowledged);
        optional("too late to tell from duplicates", self.too_late);
        optional("not as published", self.foreign);
        optional("refused", self.refused);
        optional("connects", self.connected);
        optional("sessions present", self.sessions_present);
        optional("failed connects", self.failed);
        optional("dropped connections", self.dropped);
        optional("wills due", self.wills_due);
        optional("wills", self.wills);
        optional("pings", self.pings);
        optional("pongs", self.pongs);
        if let Some(why) = &self.first_loss {
            let _ = write!(text, "; the first connection lost: {why}");
        }
        if self.interrupted {
            text += "; ended before its end";
        }
        text
    }
}

/// A number with commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Three significant digits; whole above a hundred.
pub fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => grouped(value.round() as u64),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::control::histogram;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(significant(0.0341), "0.034");
        assert_eq!(significant(3.456), "3.46");
        assert_eq!(significant(12345.6), "12,346");
    }

    #[test]
    fn percentiles_are_those_of_the_histogram() {
        let mut times = histogram(3);
        assert!(Percentiles::of(&times).is_none());
        (1..=1000u64).for_each(|ms| times.record(ms * 1_000_000).unwrap());
        let percentiles = Percentiles::of(&times).unwrap();
        assert!((percentiles.p99_ms - 990.0).abs() < 1.0, "{}", percentiles.p99_ms);
        assert!((percentiles.mean_ms - 500.5).abs() < 1.0);
        let (quantile, _) = *percentiles.curve.last().unwrap();
        assert!(quantile < 0.9991, "1,000 messages have no further nine");
    }
}

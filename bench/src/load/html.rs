//! A report as one HTML file that needs nothing else: tables, and plots as inline SVG.

use super::report::{Percentiles, Report, grouped, significant};
use std::fmt::Write;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

const STYLE: &str = "
:root { --ink: #1b2430; --muted: #5d6b7c; --line: #d9dfe7; --back: #fff; --c0: #1769aa; --c1: #c4511b; --c2: #2e7d4f; --c3: #7b3fa0;
  --good: #2e7d4f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --muted: #93a1b3; --line: #313b48; --back: #12171e; --c0: #5db2f2;
  --c1: #f2935c; --c2: #6cc491; --c3: #bd8ade; --good: #6cc491; --bad: #f28b82; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 940px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; } .muted { color: var(--muted); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--muted); font-size: 12px; }
.scroll { overflow-x: auto; } .key { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: 1.2em; height: 3px; vertical-align: middle; margin-right: .4em; }
";

struct Series<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// How an axis maps and labels its values.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Linear,
    /// Powers of ten.
    Log,
    /// A quantile: each further nine is as wide as the one before it.
    Nines,
}

impl Axis {
    fn place(self, value: f64) -> f64 {
        match self {
            Axis::Linear => value,
            Axis::Log => value.max(1e-6).log10(),
            Axis::Nines => -(1.0 - value).max(1e-9).log10(),
        }
    }

    /// Places and labels of grid lines between two places.
    fn ticks(self, low: f64, high: f64) -> Vec<(f64, String)> {
        match self {
            Axis::Linear => {
                let rough = (high - low).max(1e-12) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
                let first = (low / step).ceil() as i64;
                let last = (high / step + 1e-9).floor() as i64;
                (first..=last).map(|tick| tick as f64 * step).map(|value| (value, compact(value))).collect()
            }
            Axis::Log => {
                (low.ceil() as i32..=high.floor() as i32).map(|power| (f64::from(power), compact(10f64.powi(power)))).collect()
            }
            Axis::Nines => {
                let names = ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
                names
                    .iter()
                    .enumerate()
                    .map(|(nines, name)| (nines as f64, (*name).to_owned()))
                    .filter(|tick| tick.0 <= high)
                    .collect()
            }
        }
    }
}

struct Plot<'a> {
    title: &'a str,
    x: (Axis, &'a str),
    y: (Axis, &'a str),
    series: Vec<Series<'a>>,
    /// Places on the x axis where something begins, with its name.
    marks: Vec<(f64, &'a str)>,
}

impl Plot<'_> {
    fn write(&self, out: &mut String) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().count() < 2 {
            return;
        }
        let (x, y) = (self.x.0, self.y.0);
        let bounds = |axis: Axis, pick: fn(&(f64, f64)) -> f64| {
            let places = points().map(|point| axis.place(pick(point)));
            places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| (low.min(place), high.max(place)))
        };
        let (mut x_low, x_high) = bounds(x, |point| point.0);
        if x == Axis::Linear {
            x_low = x_low.min(0.0);
        }
        let (mut y_low, mut y_high) = bounds(y, |point| point.1);
        if y == Axis::Linear {
            y_low = y_low.min(0.0);
            y_high = (y_high * 1.05).max(y_low + 1e-6);
        } else {
            (y_low, y_high) = (y_low.floor(), y_high.ceil().max(y_low.floor() + 1.0));
        }
        let across = move |place: f64| LEFT + (place - x_low) / (x_high - x_low).max(1e-9) * (WIDTH - LEFT - RIGHT);
        let up = move |place: f64| HEIGHT - BOTTOM - (place - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM);

        let _ = write!(out, "<h2>{}</h2>\n<p>", escape(self.title));
        for (index, series) in self.series.iter().enumerate() {
            let _ = write!(out, "<span class=key><i style='background:var(--c{})'></i>{}</span>", index % 4, escape(series.name));
        }
        let _ = write!(out, "</p>\n<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{}'>\n", escape(self.title));
        for (place, label) in y.ticks(y_low, y_high) {
            let at = up(place);
            let _ = writeln!(
                out,
                "<line x1='{LEFT}' x2='{}' y1='{at:.1}' y2='{at:.1}' stroke='var(--line)'/><text x='{}' y='{:.1}' text-anchor=end>{label}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            );
        }
        for (place, label) in x.ticks(x_low, x_high) {
            let at = across(place);
            let _ = writeln!(
                out,
                "<line x1='{at:.1}' x2='{at:.1}' y1='{TOP}' y2='{}' stroke='var(--line)'/><text x='{at:.1}' y='{}' text-anchor=middle>{label}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 16.0
            );
        }
        // Names stand on three lines in turn, so that short phases do not write over each other.
        for (index, (value, name)) in self.marks.iter().enumerate() {
            let at = across(x.place(*value).clamp(x_low, x_high));
            let line = TOP + 10.0 + 13.0 * (index % 3) as f64;
            let _ = writeln!(
                out,
                "<line x1='{at:.1}' x2='{at:.1}' y1='{TOP}' y2='{}' stroke='var(--muted)' stroke-dasharray='3 3'/><text x='{:.1}' y='{line}'>{}</text>",
                HEIGHT - BOTTOM,
                at + 4.0,
                escape(name)
            );
        }
        for (index, series) in self.series.iter().enumerate() {
            let _ =
                write!(out, "<polyline fill=none stroke='var(--c{})' stroke-width=2 stroke-linejoin=round points='", index % 4);
            for (value_x, value_y) in &series.points {
                let _ = write!(out, "{:.1},{:.1} ", across(x.place(*value_x)), up(y.place(*value_y).clamp(y_low, y_high)));
            }
            out.push_str("'/>\n");
        }
        let _ = writeln!(
            out,
            "<text x='{}' y='{}' text-anchor=middle>{}</text><text transform='translate(14 {}) rotate(-90)' text-anchor=middle>{}</text>\n</svg>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            escape(self.x.1),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(self.y.1)
        );
    }
}

pub fn page(report: &Report) -> String {
    let mut out = String::with_capacity(64 << 10);
    let title = escape(&report.title());
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>\n<style>{STYLE}</style>\n"
    );
    let _ =
        write!(out, "<h1>{title}</h1>\n<p>{}</p>\n<p class=muted>{}</p>\n", escape(&report.description), escape(&report.source));
    let _ = writeln!(
        out,
        "<p class=muted>{} clients on {} threads · {} · kernel {} · broker <code>{}</code>{}{}</p>",
        grouped(report.clients),
        report.threads,
        date(report.started_s),
        escape(&report.kernel),
        escape(&report.broker),
        if report.note.is_empty() { "" } else { " · " },
        escape(&report.note)
    );
    if let Some(cost) = &report.cost {
        let _ = writeln!(out, "<p><strong>{}</strong> {}</p>", significant(cost.value), escape(&cost.per));
    }
    if let Some(slab) = &report.slab {
        let _ = writeln!(out, "<p><strong>{:.0}</strong> kernel bytes per connection, broker's end</p>", slab.broker_bytes);
    }
    let _ = writeln!(out, "<p>{}</p>", escape(&report.messages()));
    checks(report, &mut out);
    phases(report, &mut out);
    times(report, &mut out);
    search(report, &mut out);
    plots(report, &mut out);
    out.push_str("</html>\n");
    out
}

fn table(out: &mut String, title: &str, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let _ = write!(out, "<h2>{title}</h2>\n<div class=scroll><table><tr>");
    for head in heads {
        let _ = write!(out, "<th>{head}</th>");
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn verdict(holds: bool, yes: &str, no: &str) -> String {
    if holds { format!("<span class=good>{yes}</span>") } else { format!("<span class=bad>{no}</span>") }
}

fn checks(report: &Report, out: &mut String) {
    let rows = report.checks.iter().map(|check| {
        let verdict = verdict(check.holds, "pass", "fail");
        vec![escape(&check.what), check.value_text(), significant(check.bound), verdict]
    });
    table(out, "Checks", &["", "value", "at most", ""], rows);
}

fn phases(report: &Report, out: &mut String) {
    let heads =
        ["phase", "seconds", "connections", "up after, s", "out/s", "in/s", "last message, s", "broker CPU %", "resident MB"];
    let rows = report.phases.iter().map(|phase| {
        let seconds = phase.seconds.max(1e-9);
        let optional = |value: Option<f64>| value.map_or_else(String::new, significant);
        vec![
            escape(&phase.name) + if phase.complete { "" } else { " (not complete)" },
            significant(phase.seconds),
            grouped(phase.connections),
            optional(phase.connected_after_s),
            grouped((phase.sent as f64 / seconds) as u64),
            grouped((phase.received as f64 / seconds) as u64),
            optional(phase.received_after_s),
            optional(phase.cpu_percent()),
            optional(phase.resident_bytes.map(|bytes| bytes as f64 / (1 << 20) as f64)),
        ]
    });
    table(out, "Phases", &heads, rows);
}

/// The times that the measured phases have, with their names.
fn measured(report: &Report) -> Vec<(String, &Percentiles)> {
    let mut measured = Vec::new();
    for phase in &report.phases {
        for (what, times) in [("delivery", &phase.delivery), ("response", &phase.response), ("connect", &phase.connect)] {
            measured.extend(times.as_ref().map(|times| (format!("{}: {what}", phase.name), times)));
        }
    }
    measured
}

fn times(report: &Report, out: &mut String) {
    let rows = measured(report);
    if rows.is_empty() {
        return;
    }
    let heads = ["", "count", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let rows = rows.into_iter().map(|(name, times)| {
        let mut row = vec![escape(&name), grouped(times.count)];
        row.extend([times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.p999_ms, times.max_ms].map(significant));
        row
    });
    table(out, "Times in milliseconds, from when each was due", &heads, rows);
}

fn search(report: &Report, out: &mut String) {
    if report.search.is_empty() {
        return;
    }
    let rows = report.search.iter().map(|step| {
        let optional = |value: Option<f64>| value.map_or_else(String::new, significant);
        vec![
            escape(&step.phase),
            grouped(step.due_per_s as u64),
            grouped(step.received_per_s as u64),
            optional(step.mean_response_ms),
            optional(step.p99_ms),
            optional(step.broker_cpu_percent),
            verdict(step.holds, "holds", "does not hold"),
        ]
    });
    table(out, "Search for the highest rate", &["", "due/s", "in/s", "mean response, ms", "p99, ms", "broker CPU %", ""], rows);
}

fn plots(report: &Report, out: &mut String) {
    let times = measured(report);
    let series = times.iter().map(|(name, times)| Series { name, points: times.curve.clone() }).collect();
    let percentile = (Axis::Nines, "percentile");
    Plot { title: "Times by percentile", x: percentile, y: (Axis::Log, "ms"), series, marks: Vec::new() }.write(out);

    let marks: Vec<_> = report.phases.iter().map(|phase| (phase.began_s, phase.name.as_str())).collect();
    let over_time = |out: &mut String, title, y, series: Vec<Series>| {
        let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        Plot { title, x: (Axis::Linear, "seconds"), y, series, marks: marks.clone() }.write(out);
    };
    let line = |name, of: &dyn Fn(&super::report::Sample) -> Option<f64>| Series {
        name,
        points: report.samples.iter().filter_map(|sample| of(sample).map(|value| (sample.at_s, value))).collect(),
    };
    let rates =
        vec![line("published", &|sample| Some(sample.sent_per_s)), line("received", &|sample| Some(sample.received_per_s))];
    over_time(out, "Messages per second", (Axis::Linear, "messages/s"), rates);
    let delivery = vec![line("p50", &|sample| sample.p50_ms), line("p99", &|sample| sample.p99_ms)];
    over_time(out, "Delivery time, each second", (Axis::Log, "ms"), delivery);
    over_time(out, "Connections", (Axis::Linear, "up"), vec![line("up", &|sample| Some(sample.connections as f64))]);
    let cpu = vec![line("broker", &|sample| sample.broker_cpu_percent)];
    over_time(out, "Broker CPU, percent of one core", (Axis::Linear, "%"), cpu);
    let resident = |sample: &super::report::Sample| sample.broker_resident_bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
    over_time(out, "Broker memory, resident", (Axis::Linear, "MB"), vec![line("resident", &resident)]);
}

/// A tick's label.
fn compact(value: f64) -> String {
    match value.abs() {
        1e6.. => format!("{} M", trimmed(value / 1e6)),
        1e4.. => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

/// Unix time as a date and time of day, UTC.
fn date(unix_s: u64) -> String {
    // Civil date from days, with years that begin in March so that the leap day is the last of its year.
    let days = unix_s / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let second = unix_s % 86_400;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(date(1_709_251_200), "2024-03-01 00:00 UTC");
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let ticks = Axis::Linear.ticks(0.0, 23_000.0);
        assert_eq!(ticks.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>(), ["0", "5000", "10 k", "15 k", "20 k"]);
        assert_eq!(Axis::Log.ticks(-2.0, 1.0).len(), 4);
        assert_eq!(Axis::Nines.ticks(0.0, 3.0).last().unwrap().1, "99.9 %");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<a href='x'>&"), "&lt;a href=&#39;x&#39;&gt;&amp;");
    }
}

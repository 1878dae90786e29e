//! Brokers side by side: the lines that their cases printed become one table, each figure as a multiple of the floor's in the same
//! round, with the aims for Corelane beside them.

use super::report::significant;
use std::collections::BTreeMap;
use std::fmt;

/// Whose aims they are, and what they are multiples of.
const SUBJECT: &str = "corelane";
const FLOOR: &str = "floor";

#[derive(Clone, Copy, Debug)]
enum Aim {
    /// At most so many times the floor, the median over the rounds.
    Times(f64),
    /// At most so much.
    AtMost(f64),
    /// At most so much more than the floor.
    Above(f64),
}

struct Row {
    case: &'static str,
    /// The name of the figure in a case's line.
    figure: &'static str,
    title: &'static str,
    aim: Aim,
}

const fn row(case: &'static str, figure: &'static str, title: &'static str, aim: Aim) -> Row {
    Row { case, figure, title, aim }
}

/// CPU is in seconds per million: microseconds each.
const ROWS: &[Row] = &[
    row("qos0", "cost", "QoS 0, window 100: CPU µs per message", Aim::Times(2.1)),
    row("qos1", "cost", "QoS 1, window 100: CPU µs per message", Aim::Times(3.2)),
    row("qos2", "cost", "QoS 2, window 100: CPU µs per message", Aim::Times(5.5)),
    row("qos0-one", "cost", "QoS 0, one in flight: CPU µs per message", Aim::Times(1.08)),
    row("qos1-one", "cost", "QoS 1, one in flight: CPU µs per message", Aim::Times(1.7)),
    row("open-5k", "cost", "open loop, 5,000/s: CPU µs per message", Aim::Times(1.0)),
    row("open-5k", "p50_us", "open loop, 5,000/s: p50 µs", Aim::Times(1.05)),
    row("fan-out-1000", "cost", "fan-out to 1,000: CPU µs per delivery", Aim::Times(1.15)),
    row("fan-out-19500", "cost", "fan-out to 19,500: CPU µs per delivery", Aim::Times(1.15)),
    row("connect", "cost", "connect + subscribe: CPU µs per connection", Aim::Times(1.2)),
    row("storm", "up_s", "storm of 19,000: s until all are back", Aim::Times(1.1)),
    row("idle", "cost", "idle: resident bytes per connection", Aim::AtMost(700.0)),
    row("idle", "kernel", "idle: kernel bytes per connection", Aim::Above(100.0)),
];

/// Median, least and greatest.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Some(Self { median, least, greatest })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{} ({}–{})", significant(self.median), significant(self.least), significant(self.greatest))
    }
}

#[derive(Debug)]
struct Line {
    title: &'static str,
    aim: Aim,
    floor: Option<Spread>,
    /// Rounds of the subject, or of who has most.
    rounds: usize,
    /// By server, without the floor: figures, multiples of the floor in the same round, and rounds in which a check failed.
    servers: Vec<(String, Option<Spread>, Option<Spread>, usize)>,
    /// `None` where the subject took no part. Without a figure, or a floor to compare it with, an aim is not met.
    met: Option<bool>,
}

#[derive(Debug)]
pub struct Table {
    lines: Vec<Line>,
    servers: Vec<String>,
}

impl Table {
    /// `results` has a line of `name=value` for each run: `round`, `server` and `for` (the case that it is compared in) before what
    /// the case printed. A run without a figure has failed.
    pub fn of(results: &str) -> Result<Self, String> {
        // By (case, server, round).
        let mut runs: BTreeMap<(&str, &str, u32), BTreeMap<&str, &str>> = BTreeMap::new();
        let mut servers: Vec<String> = Vec::new();
        for (number, text) in results.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let values: BTreeMap<_, _> = text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
            let wrong = || format!("line {}: no round, server and for", number + 1);
            let round = values.get("round").and_then(|round| round.parse().ok()).ok_or_else(wrong)?;
            let (server, case) = (*values.get("server").ok_or_else(wrong)?, *values.get("for").ok_or_else(wrong)?);
            if server != FLOOR && !servers.iter().any(|known| known == server) {
                servers.push(server.to_owned());
            }
            runs.insert((case, server, round), values);
        }
        if runs.is_empty() {
            return Err("there are no runs in it".to_owned());
        }
        let figure = |row: &Row, server: &str, round: u32| -> Option<f64> {
            runs.get(&(row.case, server, round))?.get(row.figure)?.parse().ok()
        };
        let mut lines = Vec::new();
        for row in ROWS {
            let rounds_of = |server: &str| -> Vec<u32> {
                runs.keys().filter(|key| key.0 == row.case && key.1 == server).map(|key| key.2).collect()
            };
            let all =
                |server: &str| Spread::of(rounds_of(server).into_iter().filter_map(|round| figure(row, server, round)).collect());
            let times = |server: &str| {
                let ratios = rounds_of(server).into_iter().filter_map(|round| {
                    figure(row, server, round)
                        .zip(figure(row, FLOOR, round))
                        .filter(|pair| pair.1 > 0.0)
                        .map(|(mine, floor)| mine / floor)
                });
                Spread::of(ratios.collect())
            };
            let failed = |server: &str| {
                let failed = |round: &&u32| {
                    runs.get(&(row.case, server, **round)).is_some_and(|values| values.get("checks") != Some(&"pass"))
                };
                rounds_of(server).iter().filter(failed).count()
            };
            let floor = all(FLOOR);
            let of_servers: Vec<_> = servers.iter().map(|name| (name.clone(), all(name), times(name), failed(name))).collect();
            if floor.is_none() && of_servers.iter().all(|server| server.1.is_none() && server.3 == 0) {
                continue;
            }
            let took_part = !rounds_of(SUBJECT).is_empty();
            let met = of_servers.iter().find(|server| server.0 == SUBJECT && took_part).map(|(_, figures, times, failed)| {
                let within = |of: &Option<Spread>, most: f64| of.is_some_and(|spread| spread.median <= most);
                let is_within = match row.aim {
                    Aim::Times(most) => within(times, most),
                    Aim::AtMost(most) => within(figures, most),
                    Aim::Above(most) => floor.is_some_and(|floor| within(figures, floor.median + most)),
                };
                is_within && *failed == 0
            });
            let of_subject = Some(rounds_of(SUBJECT).len()).filter(|rounds| *rounds > 0);
            let rounds = of_subject.or_else(|| servers.iter().map(|name| rounds_of(name).len()).max()).unwrap_or(0);
            lines.push(Line { title: row.title, aim: row.aim, floor, rounds, servers: of_servers, met });
        }
        Ok(Self { lines, servers })
    }

    /// Whether every aim of the cases that the subject took part in is met.
    pub fn all_met(&self) -> bool {
        self.lines.iter().all(|line| line.met != Some(false))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            out,
            "medians, least and greatest in parentheses; × is times the floor of the same round; n is how many rounds"
        )?;
        write!(out, "{:<43} {:>2} {:<26}", "", "n", FLOOR)?;
        for server in &self.servers {
            if server == SUBJECT {
                write!(out, " {:<28} {:<14}", format!("{server}, figure"), "aim")?;
            }
            write!(out, " {:<24}", format!("{server}, ×"))?;
        }
        writeln!(out)?;
        for line in &self.lines {
            let optional = |spread: &Option<Spread>| spread.map_or_else(|| "–".to_owned(), |spread| spread.to_string());
            write!(out, "{:<43} {:>2} {:<26}", line.title, line.rounds, optional(&line.floor))?;
            for (server, figures, times, failed) in &line.servers {
                if server == SUBJECT {
                    let aim = match line.aim {
                        Aim::Times(most) => format!("≤ {most} ×"),
                        Aim::AtMost(most) => format!("≤ {most}"),
                        Aim::Above(most) => format!("≤ floor + {most}"),
                    };
                    let verdict = match line.met {
                        Some(true) => "met",
                        Some(false) => "not met",
                        None => "",
                    };
                    write!(out, " {:<28} {:<14}", optional(figures), aim)?;
                    write!(out, " {:<24}", format!("{} {verdict}", optional(times)))?;
                } else {
                    let failed = if *failed > 0 { format!(" {failed} failed") } else { String::new() };
                    write!(out, " {:<24}", format!("{}{failed}", optional(times)))?;
                }
            }
            writeln!(out)?;
            for (server, _, _, failed) in &line.servers {
                if server == SUBJECT && *failed > 0 {
                    writeln!(out, "    {server}: {failed} rounds failed a check")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = "\
round=1 server=floor for=qos0 case=qos0 cost=0.10 checks=pass
round=1 server=corelane for=qos0 case=qos0 cost=0.20 checks=pass
round=1 server=other for=qos0 case=qos0
round=2 server=floor for=qos0 case=qos0 cost=0.20 checks=pass
round=2 server=corelane for=qos0 case=qos0 cost=0.44 checks=pass
round=2 server=other for=qos0 case=qos0 cost=1.0 checks=fail
round=1 server=floor for=idle case=idle cost=36 kernel=3700 checks=pass
round=1 server=corelane for=idle case=idle cost=701 kernel=3800 checks=pass
";

    #[test]
    fn aims_are_judged_by_the_median_of_each_rounds_multiple() {
        let table = Table::of(RESULTS).unwrap();
        let met: Vec<_> = table.lines.iter().map(|line| (line.title.split(':').next().unwrap(), line.met)).collect();
        assert_eq!(met, [("QoS 0, window 100", Some(true)), ("idle", Some(false)), ("idle", Some(true))]);
        let corelane = table.lines[0].servers[0].2.unwrap();
        assert!((corelane.median - 2.1).abs() < 1e-9 && (corelane.least - 2.0).abs() < 1e-9, "{corelane:?}");
        assert!(!table.all_met());
        let text = table.to_string();
        assert!(text.contains("2 failed") && text.contains("not met"), "{text}");
    }

    #[test]
    fn a_failed_check_of_ours_is_an_aim_not_met() {
        let results = RESULTS.replace("cost=0.44 checks=pass", "cost=0.40 checks=fail");
        assert_eq!(Table::of(&results).unwrap().lines[0].met, Some(false));
    }

    #[test]
    fn an_aim_without_a_figure_is_not_met() {
        let none = |line: &str| line.replace("cost=0.20", "").replace("cost=0.44", "").replace("cost=701 kernel=3800", "");
        let of_subject = RESULTS.lines().map(|line| if line.contains("corelane") { none(line) } else { line.to_owned() });
        let table = Table::of(&of_subject.collect::<Vec<_>>().join("\n")).unwrap();
        assert!(table.lines.iter().all(|line| line.met == Some(false)) && !table.all_met());
        let without_floor: String =
            RESULTS.lines().filter(|line| !line.contains("floor")).map(|line| format!("{line}\n")).collect();
        assert!(!Table::of(&without_floor).unwrap().all_met());
        assert!(Table::of("").unwrap_err().contains("no runs"));
    }

    #[test]
    fn a_line_without_its_round_is_an_error() {
        assert!(Table::of("server=floor for=qos0").unwrap_err().contains("line 1"));
    }
}

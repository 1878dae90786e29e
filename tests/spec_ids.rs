//! Every numbered normative statement of MQTT 3.1.1 and MQTT 5.0 has its line in `spec_ids.txt`: the tests that prove it, or why it does
//! not apply. What is checked here: no statement is missing, each test named there exists and names the statement in its
//! documentation, and what a test's documentation claims stands in the list.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The statements of each standard, in ranges. The odd ones are as they are printed.
const MQTT_3_1_1: &str = "\
    1.5.3-1..3 2.2.2-1..2 2.3.1-1..7 3.1.0-1..2 3.1.2-1..6 3.1.2.7 3.1.2-8..24 3.1.3-1..11 3.1.4-1..5 3.2.0-1 3.2.2-1..6 \
    3.3.1.-1 3.3.1-2..12 3.3.2-1..3 3.3.4-1 3.3.5-1..2 3.6.1-1 3.8.1-1 3.8.3-1..3 3-8.3-4 3.8.4-1..6 3.9.3-1..2 3.10.1-1 \
    3.10.3-1..2 3.10.4-1..6 3.12.4-1 3.14.1-1 3.14.4-1..3 4.1.0-1..2 4.3.1-1 4.3.2-1..2 4.3.3-1..2 4.4.0-1 4.5.0-1..2 \
    4.6.0-1..6 4.7.1-1..3 4.7.2-1 4.7.3-1..4 4.8.0-1..2 6.0.0-1..4 7.0.0-1..2 7.1.1-1 7.1.2-1";
const MQTT_5_0: &str = "\
    1.5.4-1..3 1.5.5-1 1.5.7-1 2.1.3-1 2.2.1-2..6 2.2.2-1 3.1.0-1..2 3.1.2-1..30 3.1.3-1..12 3.1.4-1..6 3.2.0-1..2 \
    3.2.2-1..22 3.3.1-1..13 3.3.2-1..20 3.3.4-1..10 3.4.2-1..3 3.5.2-1..3 3.6.1-1 3.6.2-1..3 3.7.2-1..3 3.8.1-1 3.8.3-1..5 \
    3.8.4-1..8 3.9.2-1..2 3.9.3-1..2 3.10.1-1 3.10.3-1..2 3.10.4-1..6 3.11.2-1..2 3.11.3-1..2 3.12.4-1 3.14.0-1 3.14.1-1 \
    3.14.2-1..4 3.14.4-1..3 3.15.1-1 3.15.2-1..3 4.1.0-1..2 4.2-1 4.3.1-1 4.3.2-1..5 4.3.3-1..13 4.4.0-1..2 4.5.0-1..2 \
    4.6.0-1..6 4.7.0-1 4.7.1-1..2 4.7.2-1 4.7.3-1..4 4.8.2-1..6 4.9.0-1..3 4.12.0-1..7 4.12.1-1..2 4.13.1-1 4.13.2-1 \
    6.0.0-1..4";
const STANDARDS: [(&str, &str); 2] = [("3.1.1", MQTT_3_1_1), ("5.0", MQTT_5_0)];

/// A standard and a statement of it.
type Id = (String, String);

/// What a line says about its statement.
enum Coverage {
    Tests(Vec<String>),
    NotApplicable,
}

fn statements() -> BTreeSet<Id> {
    let mut all = BTreeSet::new();
    for (standard, ranges) in STANDARDS {
        for range in ranges.split_whitespace() {
            let Some((first, last)) = range.split_once("..") else {
                all.insert((standard.to_owned(), format!("MQTT-{range}")));
                continue;
            };
            let (section, first) = first.rsplit_once('-').expect("a section and a number");
            let number = |text: &str| text.parse::<u32>().expect("a number");
            all.extend((number(first)..=number(last)).map(|number| (standard.to_owned(), format!("MQTT-{section}-{number}"))));
        }
    }
    all
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The list, by statement.
fn list() -> BTreeMap<Id, Coverage> {
    let text = std::fs::read_to_string(root().join("tests/spec_ids.txt")).expect("the list can be read");
    let mut list = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let (Some(standard), Some(id), Some(rest)) = (words.next(), words.next(), words.next()) else { panic!("{line}") };
        let coverage = match rest.split_once(' ') {
            Some(("covered", rest)) => {
                let tests = rest.strip_prefix("by ").unwrap_or_else(|| panic!("{line}"));
                Coverage::Tests(tests.split(", ").map(str::to_owned).collect())
            }
            Some(("not", rest)) => {
                let why = rest.strip_prefix("applicable: ").unwrap_or_else(|| panic!("{line}"));
                assert!(!why.is_empty(), "{line}");
                Coverage::NotApplicable
            }
            _ => panic!("neither covered nor not applicable: {line}"),
        };
        let twice = list.insert((standard.to_owned(), id.to_owned()), coverage).is_some();
        assert!(!twice, "{standard} {id} stands twice");
    }
    list
}

/// The tests of a file that stand behind `#[test]`, each with the statements that its documentation names.
fn tests_of(text: &str) -> BTreeMap<String, BTreeSet<Id>> {
    let (mut tests, mut named, mut is_test) = (BTreeMap::new(), BTreeSet::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(documentation) = line.strip_prefix("///") {
            if let Some((standard, ids)) = documentation.trim().split_once(": ").filter(|(standard, _)| is_standard(standard)) {
                let ids = ids.split(['[', ']']).filter(|id| id.starts_with("MQTT-"));
                named.extend(ids.map(|id| (standard.to_owned(), id.to_owned())));
            }
        } else if line.starts_with("#[") {
            is_test |= line == "#[test]";
        } else {
            if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
                let name = rest.split('(').next().expect("a split has a first part");
                tests.insert(name.to_owned(), std::mem::take(&mut named));
            }
            named.clear();
            is_test = false;
        }
    }
    tests
}

fn is_standard(text: &str) -> bool {
    STANDARDS.iter().any(|(standard, _)| *standard == text)
}

/// The file in which a test of this path is, and its name.
fn file_of(path: &str) -> (PathBuf, &str) {
    let (module, name) = path.rsplit_once("::").unwrap_or_else(|| panic!("{path} is no path of a test"));
    let relative = match module.strip_prefix("corelane::") {
        Some(module) => format!("src/{}", module.replace("::", "/")),
        None => format!("tests/{}", module.replace("::", "/")),
    };
    let file = root().join(format!("{relative}.rs"));
    (if file.exists() { file } else { root().join(relative).join("mod.rs") }, name)
}

/// Past the capture of tests' output: what is covered is always shown.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

#[test]
fn every_statement_of_the_standards_is_listed_once() {
    let (list, statements) = (list(), statements());
    let listed: BTreeSet<Id> = list.keys().cloned().collect();
    let missing: Vec<&Id> = statements.difference(&listed).collect();
    let unknown: Vec<&Id> = listed.difference(&statements).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}\nunknown: {unknown:?}");
    for (standard, _) in STANDARDS {
        let of_it = || list.iter().filter(|((of, _), _)| of == standard);
        let covered = of_it().filter(|(_, coverage)| matches!(coverage, Coverage::Tests(_))).count();
        say(&format!("statements: MQTT {standard} {covered} covered of {covered} applicable, {} in all", of_it().count()));
    }
}

#[test]
fn every_test_of_the_list_exists_and_names_its_statement() {
    let mut files: BTreeMap<PathBuf, BTreeMap<String, BTreeSet<Id>>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (id, coverage) in list() {
        let Coverage::Tests(paths) = coverage else { continue };
        for path in paths {
            let (file, name) = file_of(&path);
            let tests = files.entry(file).or_insert_with_key(|file| match std::fs::read_to_string(file) {
                Ok(text) => tests_of(&text),
                Err(error) => panic!("{path}: {}: {error}", file.display()),
            });
            match tests.get(name) {
                None => wrong.push(format!("{path} does not exist")),
                Some(named) if !named.contains(&id) => wrong.push(format!("{path} does not name {id:?}")),
                Some(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_the_broker_tests_claim_stands_in_the_list() {
    let list = list();
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root().join("tests/broker")).expect("the folder can be read") {
        let file = entry.expect("the folder can be read").path();
        let module = file.file_stem().and_then(|stem| stem.to_str()).expect("a plain name").to_owned();
        for (name, named) in tests_of(&std::fs::read_to_string(&file).expect("the file can be read")) {
            let path = format!("broker::{module}::{name}");
            for id in named {
                if !matches!(list.get(&id), Some(Coverage::Tests(paths)) if paths.contains(&path)) {
                    wrong.push(format!("{} {} is claimed by {path}", id.0, id.1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not in the list:\n{}", wrong.join("\n"));
}

//! Reading the TOML file: each key is looked up in the tables of knobs, and whatever is wrong is noted with its line and column while
//! the rest is read on.

use super::draft::{Draft, LISTS, Spots};
use super::error::{ConfigError, Place};
use super::knobs::{self, SETTINGS};
use super::list::AnyList;
use super::spot::Spot;
use super::table::Table;
use crate::nearest::nearest;
use std::ops::Range;
use std::path::Path;
use toml_edit::{Document, Item, TableLike};

/// Reads a file. What could be read is in the [`Draft`] even if there are errors, so that clashes in it are found as well.
pub fn read(path: &Path, text: &str) -> (Draft, Vec<ConfigError>) {
    let mut reader = Reader { path, text, errors: Vec::new() };
    let mut draft = Draft::empty(Place::WholeFile { path: path.to_owned() });
    match Document::parse(text) {
        Ok(document) => reader.document(&document, &mut draft),
        Err(error) => {
            let what = format!("this is not TOML: {}", error.message().replace('\n', ", "));
            reader.error(error.span(), what, "write KEY = VALUE lines under a [table]; text goes in double quotes".into());
        }
    }
    (draft, reader.errors)
}

pub struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    pub fn place(&self, span: Option<Range<usize>>) -> Place {
        let Some(span) = span else { return Place::WholeFile { path: self.path.to_owned() } };
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    pub fn error(&mut self, span: Option<Range<usize>>, what: String, fix: String) {
        let place = self.place(span);
        self.errors.push(ConfigError { place, what, fix });
    }

    fn document(&mut self, document: &Document<&str>, draft: &mut Draft) {
        for (name, item) in document.iter() {
            let key_span = document.key(name).and_then(|key| key.span());
            if let Some(list) = LISTS.iter().find(|list| list.key() == name) {
                list.read(self, item, key_span, draft);
            } else if let Some(table) = SETTINGS.iter().find(|table| table.name == name) {
                match item.as_table_like() {
                    Some(entries) => {
                        let spots = draft.settings.entry(table.name).or_default();
                        self.table(entries, &[table], &[], &mut draft.config, spots);
                    }
                    None => self.error(
                        key_span,
                        format!("\"{name}\" is a table"),
                        format!("write [{name}] and its settings below it"),
                    ),
                }
            } else {
                let fix = unknown_at_top(name, item);
                let kind = if item.is_value() { "setting" } else { "table" };
                self.error(key_span, format!("unknown {kind} \"{name}\""), fix);
            }
        }
    }

    /// Reads the keys of one table, in whichever shape, into `owner`.
    pub fn table<T>(
        &mut self,
        entries: &dyn TableLike,
        tables: &[&'static Table<T>],
        lists: &[&dyn AnyList<T>],
        owner: &mut T,
        spots: &mut Spots,
    ) {
        let heading = tables.first().map(|table| table.heading()).unwrap_or_default();
        for (key, item) in entries.iter() {
            let key_span = entries.key(key).and_then(|key| key.span());
            if let Some(list) = lists.iter().find(|list| list.key() == key) {
                list.read(self, item, key_span, owner);
                continue;
            }
            let Some((table, knob)) = tables.iter().find_map(|table| Some((table, table.knob(key)?))) else {
                let fix = unknown_in_table(&heading, key, tables);
                self.error(key_span, format!("unknown setting \"{key}\" in {heading}"), fix);
                continue;
            };
            let field = (knob.field)(owner);
            let name = format!("{}.{}", table.name, knob.key);
            let Some(value) = item.as_value() else {
                let fix = format!("write {key} = and {}", field.expects(knob.domain));
                self.error(key_span, format!("{name} is a setting, not a table"), fix);
                continue;
            };
            match field.set(value, knob.domain) {
                Ok(()) => {
                    let raw = value.span().and_then(|span| self.text.get(span)).unwrap_or_default();
                    spots.insert(knob.key, Spot::new(self.place(value.span()), raw));
                }
                Err(what) => {
                    let fix = format!("expected {}", field.expects(knob.domain));
                    self.error(value.span(), format!("{name}: {what}"), fix);
                }
            }
        }
    }
}

/// All knobs as (heading of the table, key).
fn all_keys() -> impl Iterator<Item = (String, &'static str)> {
    knobs::all().flat_map(|table| table.keys().into_iter().map(|key| (table.heading(), key)))
}

/// The fix for a key that no knob of its table has: the nearest name, in this table or another.
fn unknown_in_table<T>(heading: &str, key: &str, tables: &[&'static Table<T>]) -> String {
    if let Some((other, _)) = all_keys().find(|(_, name)| *name == key) {
        return format!("{key} belongs under {other}");
    }
    let mut here = Vec::new();
    for knob in tables.iter().flat_map(|table| table.knobs()) {
        if !here.contains(&knob.key) {
            here.push(knob.key);
        }
    }
    if let Some(name) = nearest(key, here.iter().copied()) {
        return format!("did you mean \"{name}\"?");
    }
    match nearest_anywhere(key) {
        Some((other, name)) => format!("did you mean \"{name}\" under {other}?"),
        None => format!("the settings of {heading} are {}", here.join(", ")),
    }
}

fn nearest_anywhere(key: &str) -> Option<(String, &'static str)> {
    let name = nearest(key, all_keys().map(|(_, name)| name))?;
    all_keys().find(|(_, other)| *other == name)
}

/// The fix for a name at the top level that is no table of the file.
fn unknown_at_top(name: &str, item: &Item) -> String {
    if item.is_value() {
        if let Some((heading, key)) = all_keys().find(|(_, key)| *key == name) {
            return format!("{key} belongs under {heading}");
        }
        if let Some((heading, key)) = nearest_anywhere(name) {
            return format!("did you mean \"{key}\" under {heading}?");
        }
    }
    let names = SETTINGS.iter().map(|table| table.name).chain(LISTS.iter().map(|list| list.key()));
    let heading = |name: &str| knobs::all().find(|table| table.name() == name).map(|table| table.heading()).unwrap_or_default();
    match nearest(name, names.clone()) {
        Some(table) => format!("did you mean {}?", heading(table)),
        None => format!("the tables are {}", names.map(heading).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DropPolicy;

    fn errors(text: &str) -> Vec<String> {
        read(Path::new("c.toml"), text).1.iter().map(ToString::to_string).collect()
    }

    /// The only error of `text`.
    fn error(text: &str) -> String {
        let mut all = errors(text);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn settings_are_read_from_tables_dotted_keys_and_inline_tables() {
        let (draft, errors) = read(
            Path::new("c.toml"),
            "limits.packet_bytes_max = \"64 KiB\"\nlog = { level = \"debug\" }\nlistener = [{ address = \"127.0.0.1:9\" }]\n\
             [broker]\nstall_s = 0\nallow_anonymous = true\n",
        );
        assert!(errors.is_empty(), "{errors:?}");
        let config = &draft.config;
        assert_eq!((config.limits.packet_bytes_max, config.stall_s, config.allow_anonymous), (65_536, 0, Some(true)));
        assert_eq!(draft.listeners[0].value.address.port(), 9);
        let (draft, errors) = read(Path::new("c.toml"), "[limits]\ndrop_policy = \"oldest\"\n");
        assert_eq!((errors.len(), draft.config.limits.drop_policy), (0, DropPolicy::Oldest));
    }

    #[test]
    fn an_unknown_setting_is_reported_at_its_key_with_the_nearest_name() {
        assert_eq!(
            error("# comment\n\n[limits]\n  packet_byte_max = 1024\n"),
            "c.toml:4:3: error: unknown setting \"packet_byte_max\" in [limits]; did you mean \"packet_bytes_max\"?"
        );
        assert!(error("[limits]\nmax_connections = 5\n").ends_with("did you mean \"connections_max\"?"));
        assert!(error("[limits]\nstall_s = 5\n").ends_with("stall_s belongs under [broker]"));
        assert!(error("allow_anonymous = true\n").ends_with("allow_anonymous belongs under [broker]"));
        assert!(error("[broker]\nbacklog = 5\n").ends_with("backlog belongs under [[listener]]"));
        assert!(error("[broker]\nconnectionsmax = 5\n").ends_with("did you mean \"connections_max\" under [limits]?"));
        assert!(error("[log]\nxyzzy = 5\n").ends_with("the settings of [log] are level, format, interval_s"));
    }

    #[test]
    fn an_unknown_table_is_reported_with_the_nearest_table() {
        assert_eq!(
            error("[limit]\npacket_bytes_max = 1024\n"),
            "c.toml:1:2: error: unknown table \"limit\"; did you mean [limits]?"
        );
        assert!(error("[[listeners]]\naddress = \"127.0.0.1:1\"\n").ends_with("did you mean [[listener]]?"));
        assert!(error("[xyzzy]\n").ends_with("the tables are [broker], [log], [limits], [[listener]], [[kafka]], [[mongodb]], [[http]], [[file]], [[rule]], [[kafka_source]]"));
        assert!(error("[listener]\naddress = \"127.0.0.1:1\"\n").contains("write [[listener]], in double brackets"));
        assert!(error("limits = 3\n").contains("write [limits]"));
        assert!(error("listener = []\n").contains("list of tables"));
        assert!(error("[limits.packet_bytes_max]\n").contains("is a setting, not a table"));
    }

    #[test]
    fn a_wrong_value_is_reported_at_the_value_with_what_is_expected() {
        assert_eq!(
            error("[limits]\npacket_bytes_max = \"1 XB\"\n"),
            "c.toml:2:20: error: limits.packet_bytes_max: \"1 XB\" has an unknown unit (known: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB); \
             expected a size from 256 B to 256 MiB, as a number of bytes or as text such as \"64 KiB\""
        );
        assert_eq!(
            error("[limits]\nconnect_deadline_s = \"10s\"\n"),
            "c.toml:2:22: error: limits.connect_deadline_s: this is text; expected a whole number of seconds from 1 to 3,600"
        );
        assert!(error("[limits]\npacket_bytes_max = 12\n").contains("12 B is out of bounds"));
        assert!(error("[broker]\nstall_s = -1\n").contains("-1 is out of bounds"));
        assert!(error("[broker]\nshards = 65\n").contains("expected \"auto\" or a whole number from 1 to 64"));
        assert!(error("[broker]\nallow_anonymous = \"yes\"\n").contains("this is text; expected true or false"));
        assert!(error("[log]\nlevel = \"inf\"\n").contains("\"inf\" is unknown, did you mean \"info\""));
        assert!(error("[limits]\ndrop_policy = 1\n").contains("expected \"newest\", \"oldest\" or \"disconnect\""));
        assert!(error("[[listener]]\naddress = \"1883\"\n").contains("\"1883\" is no address; expected an IP address and port"));
        assert!(error("[limits]\nresponse_information = \"a\\u0007\"\n").contains("control character"));
    }

    #[test]
    fn columns_count_characters_and_lines_count_from_one() {
        assert!(error("[log]\n\"lévél\" = 1\n").starts_with("c.toml:2:1: "));
        assert!(error("log = { \"é\" = 1 }\n").starts_with("c.toml:1:9: "));
        assert!(error("log = { level = \"info\", \"é\" = 1 }\n").starts_with("c.toml:1:25: "));
        assert!(error("[log]\r\n\r\nlevle = 1\r\n").starts_with("c.toml:3:1: "));
    }

    #[test]
    fn every_error_of_a_file_is_reported() {
        let all = errors("[limits]\nfoo = 1\npacket_bytes_max = 1\n[broker]\nstall_s = \"x\"\n[[listener]]\nname = \"a\"\n");
        assert_eq!(all.len(), 4, "{all:#?}");
        assert!(all[3].starts_with("c.toml:6:1: error: listener 1 has no address"), "{}", all[3]);
    }

    #[test]
    fn what_is_not_toml_is_reported_with_its_line() {
        assert!(error("[limits]\npacket_bytes_max 12\n").starts_with("c.toml:2:"));
        assert!(error("[limits]\nturn_budget = 5\nturn_budget = 6\n").starts_with("c.toml:3:"));
        assert!(error("[limits\n").starts_with("c.toml:1:"));
    }
}

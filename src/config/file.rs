//! Reading the TOML file: each key is looked up in the table of knobs, and whatever is wrong is noted with its line and column while
//! the rest is read on.

use super::error::{ConfigError, Place};
use super::knobs::{KNOBS, Knob, LISTENER_KNOBS, LISTENER_SECTION, SECTIONS};
use super::{Config, Listener};
use crate::nearest::nearest;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use toml_edit::{Document, Item, TableLike, Value};

/// Where each setting was written, for faults that only show once all of them are known.
pub struct Origins {
    set: HashMap<&'static str, Place>,
    listeners: Vec<HashMap<&'static str, Place>>,
    /// The place of what nobody wrote.
    otherwise: Place,
}

impl Origins {
    pub fn defaults() -> Self {
        Self { set: HashMap::new(), listeners: Vec::new(), otherwise: Place::Defaults }
    }

    pub fn set(&mut self, name: &'static str, place: Place) {
        self.set.insert(name, place);
    }

    pub fn listeners_from_flags(&mut self, addresses: &[SocketAddr]) {
        let flag = |address| HashMap::from([("listener.address", Place::Flag(format!("--listen {address}")))]);
        self.listeners = addresses.iter().map(flag).collect();
    }

    /// Where a knob was written, if it was.
    pub fn written(&self, name: &str) -> Option<&Place> {
        self.set.get(name)
    }

    pub fn written_in_listener(&self, index: usize, name: &str) -> Option<&Place> {
        self.listeners.get(index)?.get(name)
    }

    pub fn otherwise(&self) -> &Place {
        &self.otherwise
    }
}

/// Reads a file. What could be read is in the [`Config`] even if there are errors, so that clashes in it are found as well.
pub fn read(path: &Path, text: &str) -> (Config, Origins, Vec<ConfigError>) {
    let mut reader = Reader { path, text, errors: Vec::new() };
    let mut config = Config::default();
    let mut origins = Origins { otherwise: Place::WholeFile { path: path.to_owned() }, ..Origins::defaults() };
    match Document::parse(text) {
        Ok(document) => reader.document(&document, &mut config, &mut origins),
        Err(error) => {
            let what = format!("this is not TOML: {}", error.message().replace('\n', ", "));
            reader.error(error.span(), what, "write KEY = VALUE lines under a [table]; text goes in double quotes".into());
        }
    }
    (config, origins, reader.errors)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn place(&self, span: Option<Range<usize>>) -> Place {
        let Some(span) = span else { return Place::WholeFile { path: self.path.to_owned() } };
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn error(&mut self, span: Option<Range<usize>>, what: String, fix: String) {
        let place = self.place(span);
        self.errors.push(ConfigError { place, what, fix });
    }

    fn document(&mut self, document: &Document<&str>, config: &mut Config, origins: &mut Origins) {
        for (name, item) in document.iter() {
            let key_span = document.key(name).and_then(|key| key.span());
            if name == LISTENER_SECTION.name {
                self.listeners(item, key_span, config, origins);
            } else if SECTIONS.iter().any(|section| section.name == name) {
                match item.as_table_like() {
                    Some(table) => self.table(name, table, KNOBS, config, &mut origins.set),
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

    fn listeners(&mut self, item: &Item, key_span: Option<Range<usize>>, config: &mut Config, origins: &mut Origins) {
        let tables: Option<Vec<&dyn TableLike>> = match item {
            Item::ArrayOfTables(array) => Some(array.iter().map(|table| table as &dyn TableLike).collect()),
            Item::Value(Value::Array(array)) => {
                array.iter().map(|value| value.as_inline_table().map(|table| table as &dyn TableLike)).collect()
            }
            _ => None,
        };
        let Some(tables) = tables.filter(|tables| !tables.is_empty()) else {
            let fix = "write [[listener]], in double brackets, once per address and its settings below it".into();
            return self.error(key_span.or(item.span()), "\"listener\" is a list of tables".into(), fix);
        };
        config.listeners.clear();
        for (index, table) in tables.into_iter().enumerate() {
            let mut listener = Listener::default();
            let mut set = HashMap::new();
            self.table(LISTENER_SECTION.name, table, LISTENER_KNOBS, &mut listener, &mut set);
            if !table.contains_key("address") {
                let span = match item {
                    Item::ArrayOfTables(array) => array.get(index).and_then(|table| table.span()),
                    other => other.span(),
                };
                let what = format!("listener {} has no address", index + 1);
                self.error(span, what, "write address = \"127.0.0.1:1883\" or another IP:PORT in it".into());
            }
            // A listener without a usable address has been reported; compared with the others it would only add noise.
            if set.contains_key("listener.address") {
                config.listeners.push(listener);
                origins.listeners.push(set);
            }
        }
    }

    /// Reads the keys of one table into `owner`.
    fn table<T>(
        &mut self,
        name: &str,
        table: &dyn TableLike,
        knobs: &'static [Knob<T>],
        owner: &mut T,
        set: &mut HashMap<&'static str, Place>,
    ) {
        for (key, item) in table.iter() {
            let key_span = table.key(key).and_then(|key| key.span());
            let Some(knob) = knobs.iter().find(|knob| knob.table() == name && knob.key() == key) else {
                let fix = unknown_in_table(name, key, knobs);
                self.error(key_span, format!("unknown setting \"{key}\" in [{name}]"), fix);
                continue;
            };
            let field = (knob.field)(owner);
            let Some(value) = item.as_value() else {
                let fix = format!("write {key} = and {}", field.expects(knob.domain));
                self.error(key_span, format!("{} is a setting, not a table", knob.name), fix);
                continue;
            };
            match field.set(value, knob.domain) {
                Ok(()) => {
                    set.insert(knob.name, self.place(value.span()));
                }
                Err(what) => {
                    let fix = format!("expected {}", field.expects(knob.domain));
                    self.error(value.span(), format!("{}: {what}", knob.name), fix);
                }
            }
        }
    }
}

/// All knobs as (table, key).
fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    KNOBS.iter().map(|knob| (knob.table(), knob.key())).chain(LISTENER_KNOBS.iter().map(|knob| (knob.table(), knob.key())))
}

fn heading(table: &str) -> String {
    if table == LISTENER_SECTION.name { format!("[[{table}]]") } else { format!("[{table}]") }
}

/// The fix for a key that no knob of its table has: the nearest name, in this table or another.
fn unknown_in_table<T>(table: &str, key: &str, knobs: &'static [Knob<T>]) -> String {
    if let Some((other, _)) = all_keys().find(|(other, name)| *name == key && *other != table) {
        return format!("{key} belongs under {}", heading(other));
    }
    let here = || knobs.iter().filter(|knob| knob.table() == table).map(Knob::key);
    if let Some(name) = nearest(key, here()) {
        return format!("did you mean \"{name}\"?");
    }
    match nearest_anywhere(key) {
        Some((other, name)) => format!("did you mean \"{name}\" under {}?", heading(other)),
        None => format!("the settings of {} are {}", heading(table), here().collect::<Vec<_>>().join(", ")),
    }
}

fn nearest_anywhere(key: &str) -> Option<(&'static str, &'static str)> {
    let name = nearest(key, all_keys().map(|(_, name)| name))?;
    all_keys().find(|(_, other)| *other == name)
}

/// The fix for a name at the top level that is no table of the file.
fn unknown_at_top(name: &str, item: &Item) -> String {
    if item.is_value() {
        if let Some((table, key)) = all_keys().find(|(_, key)| *key == name) {
            return format!("{key} belongs under {}", heading(table));
        }
        if let Some((table, key)) = nearest_anywhere(name) {
            return format!("did you mean \"{key}\" under {}?", heading(table));
        }
    }
    let tables = || SECTIONS.iter().map(|section| section.name).chain([LISTENER_SECTION.name]);
    match nearest(name, tables()) {
        Some(table) => format!("did you mean {}?", heading(table)),
        None => format!("the tables are {}", tables().map(heading).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DropPolicy;

    fn errors(text: &str) -> Vec<String> {
        read(Path::new("c.toml"), text).2.iter().map(ToString::to_string).collect()
    }

    /// The only error of `text`.
    fn error(text: &str) -> String {
        let mut all = errors(text);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn settings_are_read_from_tables_dotted_keys_and_inline_tables() {
        let (config, _, errors) = read(
            Path::new("c.toml"),
            "limits.packet_bytes_max = \"64 KiB\"\nlog = { level = \"debug\" }\nlistener = [{ address = \"127.0.0.1:9\" }]\n\
             [broker]\nstall_s = 0\nallow_anonymous = true\n",
        );
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!((config.limits.packet_bytes_max, config.stall_s, config.allow_anonymous), (65_536, 0, Some(true)));
        assert_eq!(config.listeners[0].address.port(), 9);
        let (config, _, errors) = read(Path::new("c.toml"), "[limits]\ndrop_policy = \"oldest\"\n");
        assert_eq!((errors.len(), config.limits.drop_policy), (0, DropPolicy::Oldest));
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
        assert!(error("[xyzzy]\n").ends_with("the tables are [broker], [log], [limits], [[listener]]"));
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

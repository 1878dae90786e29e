//! Sinks and sources as the broker takes them, and what can be wrong with one of them or with two.

use super::constants::{Constants, Fault, mqtt_topic};
use super::draft::{Draft, Listed, Origin};
use super::error::{ConfigError, Place};
use super::setting::{Choice, Setting};
use super::sink_knobs::Sink;
use super::table::bytes;
use crate::limits::Limits;
use crate::nearest::nearest;
use crate::sinks::http::{parse_header, parse_url};
use crate::sinks::kafka_config::{check_properties, check_topic};
use crate::sinks::mongodb::check_uri;
use crate::sinks::options::{Acks, BufferOptions, HttpOptions, KafkaOptions, MongodbOptions, Sasl, SinkKind, SourceOptions};
use std::path::{Component, Path, PathBuf};

/// A record knows its sink by a byte.
pub const SINKS_MAX: usize = 255;

/// All sinks, of whatever kind, in the order of their numbers.
pub fn take(draft: &mut Draft) -> Vec<Listed<Sink<SinkKind>>> {
    fn all<'d, K>(
        sinks: &'d mut Vec<Listed<Sink<K>>>,
        kind: fn(K) -> SinkKind,
    ) -> impl Iterator<Item = Listed<Sink<SinkKind>>> + use<'d, K> {
        sinks.drain(..).map(move |listed| {
            listed.map(|Sink { name, when_full, buffer, options }| Sink { name, when_full, buffer, options: kind(options) })
        })
    }
    all(&mut draft.kafka, SinkKind::Kafka)
        .chain(all(&mut draft.mongodb, SinkKind::Mongodb))
        .chain(all(&mut draft.http, SinkKind::Http))
        .chain(all(&mut draft.file, SinkKind::File))
        .collect()
}

/// Faults of sinks.
pub fn check(sinks: &[Listed<Sink<SinkKind>>], errors: &mut Vec<ConfigError>) {
    if let Some(first) = sinks.get(SINKS_MAX) {
        errors.push(ConfigError {
            place: first.origin.whole.clone(),
            what: format!("there are {} sinks, {SINKS_MAX} at most", sinks.len()),
            fix: "let actions share sinks".into(),
        });
    }
    find_doubles(sinks, "name", "sink", |sink| Some(sink.name.clone()), errors);
    find_doubles(sinks, "disk_path", "disk buffer", |sink| resolved(&sink.buffer.disk_path), errors);
    find_doubles(
        sinks,
        "path",
        "file",
        |sink| match &sink.options {
            SinkKind::File(file) if file.path != "-" => resolved(&file.path),
            _ => None,
        },
        errors,
    );
    for Listed { value: sink, origin } in sinks {
        let letters = resolved(&sink.buffer.dead_letter_path);
        let is_there = |other: &&Listed<Sink<SinkKind>>| matches!(&other.value.options, SinkKind::File(file) if resolved(&file.path) == letters);
        if let Some(file) = sinks.iter().find(is_there).filter(|_| letters.is_some()) {
            errors.push(ConfigError {
                place: origin.at("dead_letter_path"),
                what: format!("this is the path of a file that records go to ({})", file.origin.at("path")),
                fix: "give dead letters a file of their own".into(),
            });
        }
        let mut faults = Faults { origin, errors };
        check_buffer(sink, &mut faults);
        match &sink.options {
            SinkKind::Kafka(options) => check_kafka(options, &mut faults),
            SinkKind::Mongodb(options) => check_mongodb(options, &mut faults),
            SinkKind::Http(options) => check_http(options, &mut faults),
            SinkKind::File(_) => {}
        }
    }
}

/// Faults of sources.
pub fn check_sources(sources: &[Listed<SourceOptions>], limits: &Limits, errors: &mut Vec<ConfigError>) {
    find_doubles(sources, "name", "source", |source| Some(source.name.clone()), errors);
    for Listed { value: source, origin } in sources {
        let mut faults = Faults { origin, errors };
        check_kafka(&source.kafka, &mut faults);
        for topic in source.topics.split(',').map(str::trim) {
            if origin.written("topics").is_some()
                && let Err(what) = check_topic(topic)
            {
                faults.push("topics", what, "write names of Kafka topics, separated by commas");
            }
        }
        if source.group.is_empty() {
            faults.push("group", "group is empty".into(), "name a consumer group");
        }
        check_mqtt_topic(source, limits, &mut faults);
    }
}

/// Where the faults of one thing go.
struct Faults<'a> {
    origin: &'a Origin,
    errors: &'a mut Vec<ConfigError>,
}

impl Faults<'_> {
    fn push(&mut self, key: &str, what: String, fix: &str) {
        self.push_at(self.origin.at(key), what, fix);
    }

    /// The place of a character (from 1) in the text of a setting.
    fn inside(&self, key: &str, at: usize) -> Place {
        self.origin.spots.get(key).map_or_else(|| self.origin.at(key), |spot| spot.inside_at(at))
    }

    fn push_at(&mut self, place: Place, what: String, fix: &str) {
        self.errors.push(ConfigError { place, what, fix: fix.into() });
    }
}

/// What only one of a list may have: a name, a path.
pub fn find_doubles<T, V: PartialEq>(
    list: &[Listed<T>],
    key: &'static str,
    owner: &str,
    value: impl Fn(&T) -> Option<V>,
    errors: &mut Vec<ConfigError>,
) {
    let written = |listed: &Listed<T>| listed.origin.written(key).and_then(|_| value(&listed.value));
    let values: Vec<Option<V>> = list.iter().map(written).collect();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| value.is_some()) {
        if let Some(first) = values[..index].iter().position(|other| other == value) {
            errors.push(ConfigError {
                place: list[index].origin.at(key),
                what: format!("this is the {key} of another {owner} too ({})", list[first].origin.at(key)),
                fix: format!("give each {owner} a {key} of its own"),
            });
        }
    }
}

/// A path without detours, to be compared; `None` if it is empty.
fn resolved(path: &str) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    (!path.is_empty()).then_some(plain)
}

fn check_buffer(sink: &Sink<SinkKind>, faults: &mut Faults<'_>) {
    let buffer = &sink.buffer;
    if buffer.disk_path.is_empty() && buffer.disk_bytes_max != BufferOptions::default().disk_bytes_max {
        faults.push("disk_bytes_max", "disk_bytes_max is written and disk_path is not".into(), "name a directory with disk_path");
    }
    if buffer.batch_bytes_max > buffer.memory_bytes_max {
        let is_written = |key: &str| faults.origin.written(key).is_some();
        let shown = |key: &str, value: u64| {
            let value = value.to_toml(bytes(0, u64::MAX)).unwrap_or_default();
            format!("{key} ({value}{})", if is_written(key) { "" } else { ", the default" })
        };
        let (batch, memory) =
            (shown("batch_bytes_max", buffer.batch_bytes_max), shown("memory_bytes_max", buffer.memory_bytes_max));
        let key = if is_written("batch_bytes_max") { "batch_bytes_max" } else { "memory_bytes_max" };
        let what = format!("{batch} is more than {memory}: a batch could never fill");
        faults.push(key, what, "write a memory_bytes_max that is larger, or a batch_bytes_max that is smaller");
    }
}

fn check_kafka(options: &KafkaOptions, faults: &mut Faults<'_>) {
    for broker in options.brokers.split(',').map(str::trim) {
        let port = broker.rsplit_once(':').map_or(Some(9092), |(_, port)| port.parse::<u16>().ok());
        if broker.is_empty()
            || broker.starts_with(':')
            || broker.contains(char::is_whitespace)
            || port.is_none_or(|port| port == 0)
        {
            faults.push("brokers", format!("{broker:?} is no HOST:PORT"), "write such as \"kafka-1:9092,kafka-2:9092\"");
        }
    }
    if options.idempotence && options.acks != Acks::All {
        let what = format!("acks = \"{}\" and idempotence = true exclude each other", options.acks.word());
        faults.push("acks", what, "write idempotence = false as well, or acks = \"all\"");
    }
    if options.sasl != Sasl::None {
        for (key, value) in [("sasl_username", &options.sasl_username), ("sasl_password_path", &options.sasl_password_path)] {
            if value.is_empty() {
                faults.push("sasl", format!("sasl = \"{}\" needs {key}", options.sasl.word()), "write it beside sasl");
            }
        }
    }
    let unused = |key: &'static str, value: &str, needs: &'static str, faults: &mut Faults<'_>| {
        if !value.is_empty() {
            faults.push(key, format!("{key} has no meaning without {needs}"), "write that as well, or leave this out");
        }
    };
    if options.sasl == Sasl::None {
        unused("sasl_username", &options.sasl_username, "sasl", faults);
        unused("sasl_password_path", &options.sasl_password_path, "sasl", faults);
    }
    if !options.tls {
        unused("tls_ca_path", &options.tls_ca_path, "tls = true", faults);
        unused("tls_certificate_path", &options.tls_certificate_path, "tls = true", faults);
        unused("tls_key_path", &options.tls_key_path, "tls = true", faults);
    } else if options.tls_certificate_path.is_empty() != options.tls_key_path.is_empty() {
        let key = if options.tls_key_path.is_empty() { "tls_certificate_path" } else { "tls_key_path" };
        faults.push(key, "a certificate and its key go together".into(), "write tls_certificate_path and tls_key_path");
    }
    for (at, what) in check_properties(&options.properties) {
        let place = faults.inside("properties", at);
        faults.push_at(place, what, "write such as \"queue.buffering.max.ms=20\"; the names are librdkafka's");
    }
}

fn check_mqtt_topic(source: &SourceOptions, limits: &Limits, faults: &mut Faults<'_>) {
    const NAMES: [&str; 5] = ["topic", "key", "partition", "offset", "headers.NAME"];
    let text = &source.mqtt_topic;
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once("${") {
        let at = text[..text.len() - rest.len() + before.len()].chars().count() + 1;
        let place = faults.inside("mqtt_topic", at);
        let Some((name, after)) = behind.split_once('}') else {
            return faults.push_at(place, "`${` is not closed".into(), "write `}` behind the name");
        };
        let is_header = name.strip_prefix("headers.").is_some_and(|header| !header.is_empty());
        if !is_header && !NAMES[..4].contains(&name) {
            let fix = match nearest(name, NAMES.into_iter()) {
                Some(near) => format!("did you mean ${{{near}}}?"),
                None => format!("there are {}", NAMES.map(|name| format!("${{{name}}}")).join(", ")),
            };
            faults.push_at(place, format!("a Kafka record has no {name:?}"), &fix);
        }
        rest = after;
    }
    if let Err(Fault { at, what, fix }) = mqtt_topic(&Constants::of(text), limits) {
        let place = faults.inside("mqtt_topic", at);
        faults.push_at(place, what, fix);
    }
}

fn check_mongodb(options: &MongodbOptions, faults: &mut Faults<'_>) {
    if let Err(what) = check_uri(&options.uri) {
        let what = what.replace(char::is_control, " ");
        faults.push("uri", format!("uri: {what}"), "write such as \"mongodb://user:password@host-1,host-2/?replicaSet=rs0\"");
    }
    let database = &options.database;
    if database.is_empty() || database.contains(['/', '\\', '.', '"', '$', ' ', '*', '<', '>', ':', '|', '?', '\0']) {
        let what = format!("{database:?} is no name of a database");
        faults.push("database", what, "write letters, digits, \"_\" and \"-\"");
    }
}

fn check_http(options: &HttpOptions, faults: &mut Faults<'_>) {
    if let Some(spot) = faults.origin.spots.get("url") {
        let place = spot.place.clone();
        if let Err(what) = parse_url(&options.url) {
            faults.push_at(place, format!("url: {what}"), "write such as \"https://host:8080/ingest\"");
        }
    }
    let mut before = 0;
    for line in options.headers.split('\n') {
        let at = before + 1;
        before += line.chars().count() + 1;
        if !line.trim().is_empty()
            && let Err(what) = parse_header(line)
        {
            let place = faults.inside("headers", at);
            faults.push_at(place, what, "write lines such as \"Authorization: Bearer x\"");
        }
    }
}

//! The scenarios and cases that come with the program, as they lie in `bench/scenarios` and `bench/cases`.

use super::scenario::Scenario;

macro_rules! files {
    ($directory:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../", $directory, "/", $name, ".toml")))),+]
    };
}

/// What users run, at full size.
pub const SCENARIOS: &[(&str, &str)] = files!("scenarios":
    "iov-background", "iov-ota", "iov-storm", "iov-peak", "iov-qos2", "mongo-80k", "devices", "echo", "conn-1m", "million",
    "p2p-50k", "fanout-250k", "sharedsub-50k",
);

/// What brokers are compared with each other by.
pub const CASES: &[(&str, &str)] = files!("cases":
    "qos0", "qos1", "qos2", "qos0-one", "qos1-one", "open-5k", "fan-out-1000", "fan-out-19500", "connect", "storm", "idle",
);

/// One of these, or a file.
pub fn find(library: &[(&str, &str)], name: &str) -> Result<Scenario, String> {
    if let Some((_, text)) = library.iter().find(|(known, _)| *known == name) {
        return Scenario::parse(text).map_err(|error| format!("{name}: {error}"));
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let names: Vec<_> = library.iter().map(|(name, _)| *name).collect();
        format!("{name}: not one of {}, and no file: {error}", names.join(", "))
    })?;
    Scenario::parse(&text).map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_valid_at_any_scale() {
        for library in [SCENARIOS, CASES] {
            for (name, _) in library {
                let scenario = find(library, name).unwrap();
                assert!(!scenario.description.is_empty() && !scenario.source.is_empty(), "{name}");
                assert!(scenario.scaled(1e-9).clients() >= 1, "{name}");
            }
        }
    }
}

//! Settings that are each valid and cannot stand together.

use super::error::{ConfigError, Place};
use super::file::Origins;
use super::knobs::KNOBS;
use super::{Config, Listener};
use std::net::SocketAddr;

/// A rule between two knobs, in the words of whom it concerns.
struct Rule {
    /// The knob that is too small.
    small: &'static str,
    /// The knob that it has to measure up to.
    large: &'static str,
    /// Whether the configuration breaks the rule.
    broken: fn(&Config) -> bool,
    /// The relation, to be read between the two names: "is less than".
    relation: &'static str,
    why: &'static str,
    /// How to put it right, as a sentence about the two names.
    fix: &'static str,
}

static RULES: &[Rule] = &[
    Rule {
        small: "limits.outbox_bytes_max",
        large: "limits.packet_bytes_max",
        broken: |c| c.limits.outbox_bytes_max < c.limits.packet_bytes_max,
        relation: "is less than",
        why: "a packet that is accepted could never be sent on",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.queued_bytes_max",
        large: "limits.packet_bytes_max",
        broken: |c| c.limits.queued_bytes_max < u64::from(c.limits.packet_bytes_max),
        relation: "is less than",
        why: "a message that is accepted could never be queued",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.mesh_bytes_max",
        large: "limits.packet_bytes_max",
        broken: |c| c.limits.mesh_bytes_max < 2 * u64::from(c.limits.packet_bytes_max),
        relation: "is less than twice",
        why: "a message of that size could not cross from core to core beside others",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.memory_max_bytes",
        large: "limits.outbox_bytes_max",
        broken: |c| memory_below(c, 4 * u64::from(c.limits.outbox_bytes_max)),
        relation: "is less than four times",
        why: "one slow client within its own limit could have the whole broker refuse others",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.memory_max_bytes",
        large: "limits.mesh_bytes_max",
        broken: |c| memory_below(c, 2 * c.limits.mesh_bytes_max),
        relation: "is less than twice",
        why: "one full ring between two cores could have the whole broker refuse messages",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.memory_max_bytes",
        large: "limits.queued_bytes_max",
        broken: |c| memory_below(c, c.limits.queued_bytes_max),
        relation: "is less than",
        why: "the queue of one session could have the whole broker refuse messages",
        fix: "raise the first or lower the second",
    },
    Rule {
        small: "limits.session_expiry_max_s",
        large: "limits.session_expiry_v3_s",
        broken: |c| c.limits.session_expiry_max_s < c.limits.session_expiry_v3_s,
        relation: "is less than",
        why: "sessions of MQTT 3 clients would outlive the longest expiry granted",
        fix: "lower the second or raise the first",
    },
];

fn memory_below(config: &Config, bytes: u64) -> bool {
    config.limits.memory_max_bytes != 0 && config.limits.memory_max_bytes < bytes
}

/// Every clash of a configuration.
pub fn find(config: &mut Config, origins: &Origins) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for rule in RULES {
        if (rule.broken)(config) {
            errors.push(rule_error(rule, config, origins));
        }
    }
    find_doubles(&config.listeners, origins, &mut errors);
    for (index, listener) in config.listeners.iter().enumerate() {
        find_nobody_admitted(config, listener, index, origins, &mut errors);
    }
    errors
}

fn rule_error(rule: &Rule, config: &mut Config, origins: &Origins) -> ConfigError {
    let Rule { small, large, relation, why, fix, .. } = rule;
    let place = origins.written(small).or(origins.written(large)).unwrap_or(origins.otherwise()).clone();
    let mut shown = |name: &str| {
        let value = KNOBS.iter().find(|knob| knob.name == name).and_then(|knob| (knob.field)(config).to_toml(knob.domain));
        let default = if origins.written(name).is_some() { "" } else { ", the default" };
        format!("{name} ({}{default})", value.unwrap_or_default())
    };
    ConfigError { place, what: format!("{} {relation} {}: {why}", shown(small), shown(large)), fix: (*fix).into() }
}

fn listener_place<'a>(origins: &'a Origins, index: usize, name: &str) -> &'a Place {
    origins
        .written_in_listener(index, name)
        .or(origins.written_in_listener(index, "listener.address"))
        .unwrap_or(origins.otherwise())
}

/// Two listeners with one address or one name.
fn find_doubles(listeners: &[Listener], origins: &Origins, errors: &mut Vec<ConfigError>) {
    for (index, listener) in listeners.iter().enumerate() {
        let before = &listeners[..index];
        if let Some(first) = before.iter().position(|other| overlap(other.address, listener.address)) {
            errors.push(ConfigError {
                place: listener_place(origins, index, "listener.address").clone(),
                what: format!("{} overlaps another listener, {}", listener.address, shown(listeners, first, origins)),
                fix: "give each listener an address or port of its own".into(),
            });
        }
        if origins.written_in_listener(index, "listener.name").is_some()
            && let Some(first) = before.iter().position(|other| other.name == listener.name)
        {
            errors.push(ConfigError {
                place: listener_place(origins, index, "listener.name").clone(),
                what: format!("{:?} is the name of another listener too, {}", listener.name, shown(listeners, first, origins)),
                fix: "give each listener a name of its own, or none".into(),
            });
        }
    }
}

/// Whether two listeners would both be asked for a connection. Port 0 is a different port each time; IPv6 does not listen for IPv4.
fn overlap(left: SocketAddr, right: SocketAddr) -> bool {
    left.port() != 0
        && left.port() == right.port()
        && left.is_ipv4() == right.is_ipv4()
        && (left.ip() == right.ip() || left.ip().is_unspecified() || right.ip().is_unspecified())
}

fn shown(listeners: &[Listener], index: usize, origins: &Origins) -> String {
    format!("{} ({})", listeners[index].address, listener_place(origins, index, "listener.address"))
}

/// Without authentication a listener serves anonymous clients or nobody, and beyond loopback the operator has to say so.
fn find_nobody_admitted(config: &Config, listener: &Listener, index: usize, origins: &Origins, errors: &mut Vec<ConfigError>) {
    if config.admits_anonymous(listener) {
        return;
    }
    let refused =
        origins.written_in_listener(index, "listener.allow_anonymous").or_else(|| origins.written("broker.allow_anonymous"));
    errors.push(match refused {
        Some(place) => ConfigError {
            place: place.clone(),
            what: format!(
                "allow_anonymous = false leaves nobody to connect to {}: this release has no authentication yet",
                listener.address
            ),
            fix: "write allow_anonymous = true, or leave the listener out".into(),
        },
        None => ConfigError {
            place: listener_place(origins, index, "listener.address").clone(),
            what: format!(
                "{} can be reached from other hosts and this release has no authentication yet, so anyone could connect",
                listener.address
            ),
            fix: "listen on 127.0.0.1, or, if the network keeps strangers out, write allow_anonymous = true under [broker] or in this [[listener]] of the --config file".into(),
        },
    });
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, resolve_text};
    use std::path::Path;

    fn errors(text: &str) -> Vec<String> {
        match resolve_text(Some((Path::new("c.toml"), text)), &Flags::default()) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
        }
    }

    /// `text` breaks exactly the rule between the two knobs, and is reported at the place given.
    fn clashes(text: &str, place: &str, small: &str, large: &str) {
        let all = errors(text);
        let matching = all.iter().filter(|error| error.starts_with(place) && error.contains(small) && error.contains(large));
        assert_eq!((all.len(), matching.count()), (1, 1), "{text}: {all:#?}");
    }

    #[test]
    fn every_rule_between_limits_is_enforced_at_the_line_that_breaks_it() {
        clashes("[limits]\noutbox_bytes_max = \"512 KiB\"\n", "c.toml:2:20: ", "outbox_bytes_max", "packet_bytes_max");
        clashes("[limits]\nqueued_bytes_max = \"512 KiB\"\n", "c.toml:2:20: ", "queued_bytes_max", "packet_bytes_max");
        clashes("[limits]\nmesh_bytes_max = \"1 MiB\"\n", "c.toml:2:18: ", "mesh_bytes_max", "packet_bytes_max");
        clashes(
            "[limits]\nmemory_max_bytes = \"100 MiB\"\noutbox_bytes_max = \"32 MiB\"\n",
            "c.toml:2:20: ",
            "memory_max_bytes",
            "outbox_bytes_max",
        );
        clashes(
            "[limits]\nmesh_bytes_max = \"64 MiB\"\nmemory_max_bytes = \"100 MiB\"\n",
            "c.toml:3:20: ",
            "memory_max_bytes",
            "mesh_bytes_max",
        );
        clashes("[limits]\nmemory_max_bytes = \"63 MiB\"\n", "c.toml:2:20: ", "memory_max_bytes", "queued_bytes_max");
        clashes("[limits]\nsession_expiry_max_s = 3600\n", "c.toml:2:24: ", "session_expiry_max_s", "session_expiry_v3_s");
    }

    #[test]
    fn a_packet_limit_that_the_defaults_cannot_carry_is_reported_at_itself() {
        let all = errors("[limits]\npacket_bytes_max = \"16 MiB\"\n");
        assert_eq!(all.len(), 2, "{all:#?}");
        assert!(all.iter().all(|error| error.starts_with("c.toml:2:20: ") && error.contains("the default")), "{all:#?}");
    }

    #[test]
    fn a_listener_on_every_address_overlaps_those_of_its_port_and_family() {
        let two = |first, second| {
            errors(&format!(
                "[broker]\nallow_anonymous = true\n[[listener]]\naddress = \"{first}\"\n[[listener]]\naddress = \"{second}\"\n"
            ))
        };
        let all = two("0.0.0.0:1883", "127.0.0.1:1883");
        assert!(all.len() == 1 && all[0].starts_with("c.toml:6:11: error: 127.0.0.1:1883 overlaps"), "{all:#?}");
        assert_eq!(two("[::1]:1883", "[::]:1883").len(), 1);
        for (first, second) in
            [("0.0.0.0:1883", "127.0.0.1:1884"), ("0.0.0.0:1883", "[::]:1883"), ("10.0.0.1:1883", "10.0.0.2:1883")]
        {
            assert_eq!(two(first, second), Vec::<String>::new());
        }
    }

    #[test]
    fn two_listeners_on_one_address_or_with_one_name_clash() {
        let all = errors(
            "[[listener]]\naddress = \"127.0.0.1:1883\"\nname = \"a\"\n[[listener]]\naddress = \"127.0.0.1:1883\"\n\
             [[listener]]\naddress = \"127.0.0.1:1884\"\nname = \"a\"\n",
        );
        assert_eq!(all.len(), 2, "{all:#?}");
        assert!(all[0].starts_with("c.toml:5:11: ") && all[0].contains("(c.toml:2:11)"), "{}", all[0]);
        assert!(all[1].starts_with("c.toml:8:8: ") && all[1].contains("\"a\" is the name"), "{}", all[1]);
        let free_ports = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n";
        assert_eq!(errors(free_ports), Vec::<String>::new());
    }

    #[test]
    fn errors_and_clashes_of_one_file_come_together_in_its_order() {
        let all = errors("[[listener]]\naddress = \"0.0.0.0:1\"\n[limits]\nfoo = 1\noutbox_bytes_max = \"4 KiB\"\n");
        let places: Vec<&str> = all.iter().map(|error| error.split(": ").next().unwrap()).collect();
        assert_eq!(places, ["c.toml:2:11", "c.toml:4:1", "c.toml:5:20"]);
    }
}

//! Settings that are each valid and cannot stand together.

use super::draft::{Draft, Listed};
use super::error::ConfigError;
use super::knobs::LIMITS;
use super::sinks::find_doubles;
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

/// Every clash between settings of the process and its listeners.
pub fn find(draft: &mut Draft, errors: &mut Vec<ConfigError>) {
    for rule in RULES {
        if (rule.broken)(&draft.config) {
            errors.push(rule_error(rule, draft));
        }
    }
    find_overlaps(&draft.listeners, errors);
    find_doubles(&draft.listeners, "name", "listener", |listener| Some(listener.name.clone()), errors);
    for listener in &draft.listeners {
        find_nobody_admitted(draft, listener, errors);
    }
}

fn rule_error(rule: &Rule, draft: &mut Draft) -> ConfigError {
    let Rule { small, large, relation, why, fix, .. } = rule;
    let place = draft.written(small).or(draft.written(large)).unwrap_or(&draft.otherwise).clone();
    let mut shown = |name: &str| {
        let value = LIMITS.knobs().find(|knob| name.strip_prefix("limits.") == Some(knob.key));
        let value = value.and_then(|knob| (knob.field)(&mut draft.config).to_toml(knob.domain));
        let default = if draft.written(name).is_some() { "" } else { ", the default" };
        format!("{name} ({}{default})", value.unwrap_or_default())
    };
    ConfigError { place, what: format!("{} {relation} {}: {why}", shown(small), shown(large)), fix: (*fix).into() }
}

/// Two listeners with one address.
fn find_overlaps(listeners: &[Listed<Listener>], errors: &mut Vec<ConfigError>) {
    for (index, listener) in listeners.iter().enumerate() {
        let address = listener.value.address;
        if let Some(first) = listeners[..index].iter().find(|other| overlap(other.value.address, address)) {
            let (other, place) = (first.value.address, first.origin.at("address"));
            errors.push(ConfigError {
                place: listener.origin.at("address"),
                what: format!("{address} overlaps another listener, {other} ({place})"),
                fix: "give each listener an address or port of its own".into(),
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

/// Without authentication a listener serves anonymous clients or nobody, and beyond loopback the operator has to say so.
fn find_nobody_admitted(draft: &Draft, listener: &Listed<Listener>, errors: &mut Vec<ConfigError>) {
    if draft.config.admits_anonymous(&listener.value) {
        return;
    }
    let address = listener.value.address;
    let refused = listener.origin.written("allow_anonymous").or_else(|| draft.written("broker.allow_anonymous"));
    errors.push(match refused {
        Some(place) => ConfigError {
            place: place.clone(),
            what: format!("allow_anonymous = false leaves nobody to connect to {address}: this release has no authentication yet"),
            fix: "write allow_anonymous = true, or leave the listener out".into(),
        },
        None => ConfigError {
            place: listener.origin.at("address"),
            what: format!(
                "{address} can be reached from other hosts and this release has no authentication yet, so anyone could connect"
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
        assert!(
            all[1].starts_with("c.toml:8:8: ") && all[1].contains("the name of another listener too (c.toml:3:8)"),
            "{}",
            all[1]
        );
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

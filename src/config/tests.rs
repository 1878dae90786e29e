//! The configuration as a whole: flags, file and defaults together.

use super::*;

fn resolve_file(text: &str) -> Result<Config, ConfigErrors> {
    resolve_text(Some((Path::new("corelane.toml"), text)), &Flags::default())
}

#[test]
fn without_flags_and_file_there_is_one_loopback_listener_that_admits_anonymous_clients() {
    let config = resolve_text(None, &Flags::default()).unwrap();
    let [listener] = &config.listeners[..] else { panic!("one listener") };
    assert_eq!((listener.name.as_str(), listener.address.to_string().as_str()), ("127.0.0.1:1883", "127.0.0.1:1883"));
    assert!(config.admits_anonymous(listener));
    assert_eq!((config.shards, config.shutdown_s, config.stall_s), (Shards::Auto, 10, 30));
    assert_eq!((config.sys_interval_s, config.log_interval_s, config.log_level), (10, 60, LogLevel::Info));
    assert_eq!((listener.backlog, listener.tcp_nodelay), (65_535, true));
}

#[test]
fn the_command_line_beats_the_file() {
    let text = "[broker]\nshards = 3\n[log]\nlevel = \"warn\"\n[[listener]]\naddress = \"127.0.0.1:2000\"\n\
                [[listener]]\naddress = \"127.0.0.1:2001\"\nbacklog = 7\n";
    let file = Some((Path::new("corelane.toml"), text));
    let config = resolve_text(file, &Flags::default()).unwrap();
    assert_eq!((config.shards, config.log_level, config.listeners.len()), (Shards::Exactly(3), LogLevel::Warn, 2));
    let flags = Flags {
        config: None,
        listen: vec!["127.0.0.1:0".parse().unwrap(), "127.0.0.1:2001".parse().unwrap()],
        shards: Some(Shards::Auto),
        log: Some(LogLevel::Trace),
    };
    let config = resolve_text(file, &flags).unwrap();
    assert_eq!((config.shards, config.log_level), (Shards::Auto, LogLevel::Trace));
    let ports: Vec<u16> = config.listeners.iter().map(|listener| listener.address.port()).collect();
    assert_eq!((ports, config.listeners[0].backlog, config.listeners[1].backlog), (vec![0, 2001], 65_535, 7));
}

#[test]
fn a_listener_beyond_loopback_needs_allow_anonymous() {
    let wide = "[[listener]]\naddress = \"0.0.0.0:1883\"\n";
    let errors = resolve_file(wide).unwrap_err();
    assert_eq!(errors.0.len(), 1);
    let message = errors.to_string();
    assert!(message.starts_with("corelane.toml:2:11: error: "), "{message}");
    assert!(message.contains("no authentication") && message.contains("allow_anonymous = true"), "{message}");

    assert!(resolve_file(&format!("{wide}allow_anonymous = true\n")).is_ok());
    assert!(resolve_file(&format!("[broker]\nallow_anonymous = true\n{wide}")).is_ok());
    assert!(resolve_file(&format!("[broker]\nallow_anonymous = true\n{wide}allow_anonymous = false\n")).is_err());
    for loopback in ["127.0.0.1:1883", "127.9.9.9:1883", "[::1]:1883", "[::ffff:127.0.0.1]:1883"] {
        assert!(resolve_file(&format!("[[listener]]\naddress = \"{loopback}\"\n")).is_ok(), "{loopback}");
    }
    for wide in ["[::]:1883", "10.0.0.1:1883", "[::ffff:10.0.0.1]:1883"] {
        assert!(resolve_file(&format!("[[listener]]\naddress = \"{wide}\"\n")).is_err(), "{wide}");
    }
}

#[test]
fn the_refusal_of_a_flag_names_the_flag() {
    let flags = Flags { listen: vec!["0.0.0.0:1883".parse().unwrap()], ..Flags::default() };
    let message = resolve_text(None, &flags).unwrap_err().to_string();
    assert!(message.starts_with("--listen 0.0.0.0:1883: error: "), "{message}");
}

#[test]
fn a_listener_that_admits_nobody_is_refused() {
    let message = resolve_file("[broker]\nallow_anonymous = false\n").unwrap_err().to_string();
    assert!(message.starts_with("corelane.toml:2:19: error: "), "{message}");
    assert!(message.contains("nobody"), "{message}");
}

#[test]
fn a_missing_file_is_one_clear_error() {
    let flags = Flags { config: Some("/nonexistent/corelane.toml".into()), ..Flags::default() };
    let message = resolve(&flags).unwrap_err().to_string();
    assert!(message.starts_with("/nonexistent/corelane.toml: error: the configuration cannot be read"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn shards_are_auto_or_a_number_of_cores() {
    assert_eq!("auto".parse(), Ok(Shards::Auto));
    assert_eq!("64".parse(), Ok(Shards::Exactly(64)));
    for text in ["0", "65", "-1", "Auto", "", "1.5"] {
        assert!(text.parse::<Shards>().is_err(), "{text}");
    }
}

//! The command line as it is written, and the exit codes.

use crate::config::Flags;
use crate::trial::Trial;
use clap::builder::RangedI64ValueParser;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// The exit codes, as sysexits.h names them where it has a name. 2 (usage) comes from the parser of the command line.
pub mod exit {
    /// `doctor`: something is short.
    pub const SHORT: u8 = 1;
    /// A listener cannot be opened: its address is in use, or not this host's.
    pub const UNAVAILABLE: u8 = 69;
    /// The broker failed while it ran.
    pub const SOFTWARE: u8 = 70;
    /// The kernel refuses what the broker needs: io_uring is missing or forbidden, or a resource limit is too low.
    pub const OS: u8 = 71;
    /// What was asked for cannot be written to standard output.
    pub const IO: u8 = 74;
    /// A listener's port is privileged.
    pub const NO_PERMISSION: u8 = 77;
    /// The configuration, or a rule, has errors.
    pub const CONFIG: u8 = 78;
}

const AFTER_HELP: &str = "\
Without a command, `corelane` runs the broker, and the options of `run` may follow it.
The command line beats the file, the file beats the defaults; the environment is not read,
but for CORELANE_TEST_DELAYS, which delays decisions at random in tests.

Exit codes:
   0  ended on SIGTERM or SIGINT, or nothing wrong with the file or the rule; for `doctor`: nothing is short
   1  for `doctor`: something is short
   2  the command line is wrong
  69  an address cannot be listened on: in use, or not this host's
  70  the broker failed while it ran
  71  the kernel refuses what the broker needs: io_uring missing or forbidden, a resource limit too low
  74  standard output cannot be written: a full disk
  77  no permission to listen on a port
  78  the configuration or a rule has errors; each is one line with (file,) line and column
 130  ended at once by a second SIGINT
 134  aborted (SIGABRT): a defect, or a shard stalled for longer than broker.stall_s
 143  ended at once by a second SIGTERM";

#[derive(Parser, Debug)]
#[command(name = "corelane", version, about, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    flags: Flags,
}

#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Run the broker
    Run(Flags),
    /// Report everything that is wrong with a configuration file
    CheckConfig {
        /// The file (TOML)
        file: PathBuf,
    },
    /// Print every setting with its description, bounds and default, as a file to start from
    ConfigReference,
    /// Say what so many connections need of this host, what it has, and how to get what is short
    Doctor {
        /// Connections at the same time
        #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = RangedI64ValueParser::<u64>::new().range(1..=100_000_000))]
        connections: u64,
        /// The configuration of the broker that is to run here: its shards, backlog and connections_max, instead of the defaults
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// One JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Work on rules without a broker
    #[command(subcommand)]
    Rules(Rules),
}

#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Rules {
    /// Print what a rule makes of a message: a line of JSON for each row, or why there is none
    Test(Trial),
}

impl Cli {
    /// What is to be done: `run` if no command is named.
    pub fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Run(self.flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LogLevel, Shards};
    use crate::trial::Subject;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Command, clap::Error> {
        Cli::try_parse_from([&["corelane"], arguments].concat()).map(Cli::into_command)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_means_run_and_takes_its_options() {
        let arguments =
            ["--listen", "127.0.0.1:1", "--listen", "[::1]:2", "--shards", "2", "--log", "debug", "--config", "c.toml"];
        let flags = Flags {
            config: Some("c.toml".into()),
            listen: vec!["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()],
            shards: Some(Shards::Exactly(2)),
            log: Some(LogLevel::Debug),
        };
        assert_eq!(parse(&arguments).unwrap(), Command::Run(flags.clone()));
        assert_eq!(parse(&[&["run"], &arguments[..]].concat()).unwrap(), Command::Run(flags));
        assert_eq!(parse(&[]).unwrap(), Command::Run(Flags::default()));
        assert_eq!(parse(&["check-config", "c.toml"]).unwrap(), Command::CheckConfig { file: "c.toml".into() });
        assert_eq!(
            parse(&["doctor", "--connections", "7", "--json"]).unwrap(),
            Command::Doctor { connections: 7, config: None, json: true }
        );
    }

    #[test]
    fn a_rule_is_tried_with_a_message_given_in_parts() {
        let parts = ["--sql", "SELECT * FROM \"t\"", "--topic", "t", "--payload", "{}", "--qos", "1", "--property", "k=v=w"];
        let Command::Rules(Rules::Test(trial)) = parse(&[&["rules", "test"], &parts[..]].concat()).unwrap() else {
            panic!("the command is rules test")
        };
        assert_eq!(trial.subject, Subject::Message { topic: "t".to_owned() });
        assert_eq!((trial.payload.as_str(), trial.qos, trial.retain), ("{}", 1, false));
        assert_eq!(trial.properties, [("k".to_owned(), "v=w".to_owned())]);
    }

    #[test]
    fn a_wrong_command_line_ends_with_code_2_and_says_what_is_expected() {
        for (arguments, expected) in [
            (&["--listen", "1883"][..], "expected an IP address and port"),
            (&["--shards", "65"], "whole number from 1 to 64"),
            (&["--log", "loud"], "expected \"error\", \"warn\""),
            (&["--port", "1883"], "unexpected argument"),
            (&["check-config"], "FILE"),
            (&["doctor"], "--connections"),
            (&["doctor", "--connections", "0"], "0 is not in 1..=100000000"),
            (&["doctor", "--connections", "-5"], "-5 is not in 1..=100000000"),
            (&["rules", "test", "--topic", "t"], "--sql"),
            (&["rules", "test", "--sql", "x", "--topic", "a/#"], "invalid value 'a/#' for '--topic <TOPIC>'"),
            (&["rules", "test", "--sql", "x", "--topic", "$events/clientconnected"], "did you mean `client_connected`?"),
            (&["rules", "test", "--sql", "x", "--topic", "t", "--qos", "3"], "0..=2"),
            (&["rules", "test", "--sql", "x", "--topic", "t", "--property", "k"], "NAME=VALUE"),
            (&["--shards", "1", "check-config", "c.toml"], "cannot be used with"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn every_argument_says_what_it_is() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} of {}", argument.get_id(), command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}

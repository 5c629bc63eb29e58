//! A configuration and changes to it: `--set` and `--unset`, in the order in which they are given.

use std::ops::Deref;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, Id, value_parser};

use crate::config::UNSET;

const SET_ID: &str = "set";
const UNSET_ID: &str = "unset";
const CONFIG_ID: &str = "config";
const BACKEND_ID: &str = "backend";
/// The group of all of them.
const GROUP_ID: &str = "ConfigArgs";

/// A configuration and changes to it.
#[derive(Clone, Debug)]
pub struct ConfigArgs {
    /// The file.
    pub config: PathBuf,
    changes: Changes,
    backend: Option<String>,
}

impl ConfigArgs {
    /// With one more change, after all others.
    #[must_use]
    pub fn with(&self, set: String) -> Self {
        let mut changed = self.clone();
        changed
            .changes
            .0
            .extend(changed.backend.take().map(|name| format!("device.backend={name}")));
        changed.changes.0.push(set);
        changed
    }

    /// All changes, in order.
    pub fn sets(&self) -> Vec<String> {
        let backend = self.backend.iter().map(|name| format!("device.backend={name}"));
        self.changes.iter().cloned().chain(backend).collect()
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            config: matches.get_one::<PathBuf>(CONFIG_ID).cloned().unwrap_or_default(),
            changes: Changes::from_arg_matches(matches)?,
            backend: matches.get_one::<String>(BACKEND_ID).cloned(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ConfigArgs {
    fn group_id() -> Option<Id> {
        Some(GROUP_ID.into())
    }

    fn augment_args(command: Command) -> Command {
        let members = [CONFIG_ID, SET_ID, UNSET_ID, BACKEND_ID];
        let config = Arg::new(CONFIG_ID).value_name("CONFIG").required(true);
        let config = config.value_parser(value_parser!(PathBuf)).help("Configuration file (TOML)");
        let command =
            command.group(ArgGroup::new(GROUP_ID).multiple(true).args(members)).arg(config);
        let backend = Arg::new(BACKEND_ID).long(BACKEND_ID).value_name("BACKEND");
        Changes::augment_args(command).arg(backend.help(
            "cpu, cuda, tpu, or the path of a plugin: short for --set device.backend=.., after all \
             others",
        ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Changes to a configuration, as [`crate::config::Config::load`] takes them.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<String>);

impl Deref for Changes {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl FromArgMatches for Changes {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |id, prefix: &'static str| {
            let places = matches.indices_of(id).into_iter().flatten();
            let values = matches.get_many::<String>(id).into_iter().flatten();
            places.zip(values.map(move |value| format!("{prefix}{value}")))
        };
        let mut changes: Vec<_> = given(SET_ID, "").chain(given(UNSET_ID, UNSET)).collect();
        changes.sort_by_key(|(place, _)| *place);
        Ok(Self(changes.into_iter().map(|(_, change)| change).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Changes {
    fn augment_args(command: Command) -> Command {
        let option = |id: &'static str| Arg::new(id).long(id).action(ArgAction::Append);
        command
            .arg(option(SET_ID).value_name("SECTION.KEY=VALUE").help(
                "Set a key of the configuration; may be given several times. Paths are relative to \
                 the current directory; paths in the file are relative to the file",
            ))
            .arg(option(UNSET_ID).value_name("SECTION.KEY").help(
                "Take a key of the file, or of an earlier --set, back, so that its default holds; \
                 may be given several times",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A change as an argument of a command.
pub fn argument(change: &str) -> [&str; 2] {
    match change.strip_prefix(UNSET) {
        Some(key) => [UNSET.trim(), key],
        None => ["--set", change],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args;

    #[test]
    fn changes_keep_their_order() {
        let given = "train a.toml --set a.b=1 --unset a.b --backend cuda --set=a.b=2 --unset=c.d";
        let parse = |text: &str| args::Args::try_parse_from(format!("lockstep {text}").split(' '));
        let args::Command::Train(train) = parse(given).unwrap().command else { panic!("{given}") };
        let expected = ["a.b=1", "--unset a.b", "a.b=2", "--unset c.d", "device.backend=cuda"];
        assert_eq!(train.config.sets(), expected);
        assert_eq!(argument(&train.config.sets()[1]), ["--unset", "a.b"]);
        assert_eq!(argument("a.b=2"), ["--set", "a.b=2"]);
        // Every command that takes one takes the other.
        for command in [
            "config a.toml",
            "hlo a.toml",
            "bench a.toml",
            "schedule a.toml",
            "compile a.toml --target tpu:v5e:2x2",
            "preflight a.toml --target tpu:v5e:2x2",
            "plan a.toml --target tpu:v5e:2x2",
            "evaluate run",
            "predict run a.tsv",
        ] {
            assert!(parse(&format!("{command} --set a.b=1 --unset a.b")).is_ok(), "{command}");
        }
        assert!(parse("config --unset a.b").is_err(), "no configuration is named");
        let reference = parse("config --reference").unwrap().command;
        assert!(matches!(reference, args::Command::Config { config: None, reference: true }));
        let named = parse("config a.toml").unwrap().command;
        assert!(matches!(named, args::Command::Config { config: Some(_), reference: false }));
    }
}

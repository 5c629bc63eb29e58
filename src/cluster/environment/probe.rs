//! Access to the environment, which tests replace by recorded values.

use std::path::Path;

use super::error::EnvironmentError;
use super::{DEFAULT_PORT, Known};
use crate::config::HostPort;

type Result<T> = std::result::Result<T, EnvironmentError>;

/// How to look up variables, files and metadata.
pub struct Probe<'a> {
    /// The value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The names of all environment variables.
    pub names: &'a dyn Fn() -> Vec<String>,
    /// The contents of a text file.
    pub file: &'a dyn Fn(&Path) -> Option<String>,
    /// An attribute of this machine from the cloud's metadata server; asked only if no variable
    /// identifies the process. Pass a function that returns `None` on machines without TPUs:
    /// elsewhere the server may be slow not to exist.
    pub metadata: &'a dyn Fn(&str) -> Option<String>,
}

impl Probe<'_> {
    /// A variable that is set and not empty.
    pub(super) fn text(&self, variable: &str) -> Option<Known<String>> {
        let value = (self.variable)(variable)?.trim().to_owned();
        (!value.is_empty()).then(|| Known { value, from: variable.to_owned() })
    }

    /// A variable with a number from 0.
    pub(super) fn number(&self, variable: &str) -> Result<Option<Known<usize>>> {
        self.text(variable).map(|text| parse(&text.value, variable, 0)).transpose()
    }

    /// A variable with a number from 1.
    pub(super) fn count(&self, variable: &str) -> Result<Option<Known<usize>>> {
        self.text(variable).map(|text| parse(&text.value, variable, 1)).transpose()
    }
}

impl Probe<'_> {
    /// A variable with a host, and the port in another one; both are known, or it is an error.
    pub(super) fn address(&self, host: &str, port: &str) -> Result<Option<Known<HostPort>>> {
        let Some(found) = self.text(host) else { return Ok(None) };
        let expected = "a host (a name or an IP address, without a port)";
        let (number, from) = match self.text(port) {
            Some(text) => {
                let number = text.value.parse().ok().filter(|port| *port > 0);
                let number =
                    number.ok_or_else(|| invalid(port, &text.value, "a port from 1 to 65535"))?;
                (number, format!("{host}, {port}"))
            }
            None => (DEFAULT_PORT, host.to_owned()),
        };
        let value = HostPort::new(&found.value, number);
        let value = value.ok_or_else(|| invalid(host, &found.value, expected))?;
        Ok(Some(Known { value, from }))
    }
}

/// `HOST:PORT`, or a host whose port follows from elsewhere.
pub(super) fn host_and_port(text: &str, from: &str, port: u16) -> Result<HostPort> {
    let address = text.parse().ok().or_else(|| HostPort::new(text, port));
    address.ok_or_else(|| invalid(from, text, "a host, or HOST:PORT, such as [2001:db8::1]:61400"))
}

/// Reads a number of at least `min`, which is 0 or 1.
pub(super) fn parse(text: &str, from: &str, min: usize) -> Result<Known<usize>> {
    match text.parse() {
        Ok(value) if value >= min => Ok(Known { value, from: from.to_owned() }),
        _ => Err(invalid(from, text, ["a number", "a number above 0"][min])),
    }
}

pub(super) fn invalid(variable: &str, value: &str, expected: &'static str) -> EnvironmentError {
    EnvironmentError::Invalid { variable: variable.to_owned(), value: value.to_owned(), expected }
}

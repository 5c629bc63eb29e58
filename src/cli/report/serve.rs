//! `report --serve`: the page of runs that go on, read again while somebody looks at it.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use super::{Report, page};
use crate::cli::{print_line, signals};
use crate::cluster::host_name;
use crate::config::HostPort;
use crate::observe::{HttpAnswer, HttpRequest, HttpServer, Jsonl, Summary, say};
use crate::train::CONFIG_FILE;

/// Where the page is without another address.
pub const ADDRESS: &str = "127.0.0.1:8440";
/// How long a connection may take: a page can have megabytes.
const MAX_TIME: Duration = Duration::from_secs(30);
/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of the time at most one part in so many goes into new pages.
const SHARE: u32 = 10;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 16;

/// The newest page, and who may see it.
struct Served {
    page: Mutex<Page>,
    /// What a request must have after `token=`; `None` where only this host can ask.
    token: Option<String>,
    /// Somebody has asked since the last new page.
    is_wanted: AtomicBool,
}

#[derive(Clone)]
struct Page {
    text: Arc<str>,
    version: Arc<str>,
}

/// Serves the page of these runs until a signal ends it.
pub fn serve(dirs: &[PathBuf], address: &HostPort) -> Result<ExitCode> {
    let mut files = stamps(dirs);
    let (mut number, begun) = (0, SystemTime::now());
    let mut next = || -> Result<Page> {
        number += 1;
        let since = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let version = format!("{:x}-{number}", since.as_nanos());
        let text = page::page(&Report::of(dirs)?, Some(&version))?;
        Ok(Page { text: text.into(), version: version.into() })
    };
    let first = next()?;
    let failed =
        || format!("cannot listen on {address}; choose another address with --serve HOST:PORT");
    let listener = TcpListener::bind((address.host(), address.port())).with_context(failed)?;
    let ip = listener.local_addr().with_context(failed)?.ip();
    let token = if ip.is_loopback() { None } else { Some(random_token()?) };
    let place = url(address, ip, token.as_deref());
    let (page, is_wanted) = (Mutex::new(first), AtomicBool::new(false));
    let served = Arc::new(Served { page, token, is_wanted });
    let answered = served.clone();
    // Before anybody is answered, who might then end this.
    let ended = signals::Ending::watch().context("cannot wait for signals")?;
    let _server = HttpServer::start(listener, MAX_TIME, move |request| answered.answer(request))
        .with_context(failed)?;
    print_line(&place)?;
    say("serving the page until Ctrl-C; it follows what the runs write");
    let mut has_said = false;
    let mut pause = LOOK_EVERY;
    while !ended.has_come_within(pause) {
        let now = stamps(dirs);
        pause = LOOK_EVERY;
        if now == files || !served.is_wanted.swap(false, Ordering::Relaxed) {
            continue;
        }
        let started = Instant::now();
        match next() {
            Ok(page) => {
                (files, has_said) = (now, false);
                *served.lock() = page;
            }
            // The run may be about to be replaced: the last page stays.
            Err(error) if !std::mem::replace(&mut has_said, true) => {
                say(&format!("warning: the page stays as it is: {error:#}"));
            }
            Err(_) => {}
        }
        pause = LOOK_EVERY.max(started.elapsed() * SHARE);
    }
    Ok(ExitCode::from(ended.exit_code()))
}

impl Served {
    fn lock(&self) -> std::sync::MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: HttpRequest<'_>) -> HttpAnswer {
        let is_allowed = match &self.token {
            Some(token) => given_token(request.query).is_some_and(|given| is_same(given, token)),
            // A page of another site could have this address under a name of its own.
            None => request.host.is_none_or(is_own_name),
        };
        if !is_allowed {
            let text = "this page needs the address that `lockstep report` has printed\n";
            return HttpAnswer::forbidden(text);
        }
        let Page { text, version } = self.lock().clone();
        let answer = match request.path {
            "/" => HttpAnswer::found("text/html; charset=utf-8", text),
            "/version" => HttpAnswer::found("text/plain; charset=utf-8", version),
            _ => return HttpAnswer::not_found("the page is at /\n"),
        };
        self.is_wanted.store(true, Ordering::Relaxed);
        answer
            .with("Cache-Control", "no-store")
            .with("Content-Security-Policy", "frame-ancestors 'none'")
            .with("Referrer-Policy", "no-referrer")
            .with("X-Content-Type-Options", "nosniff")
    }
}

fn given_token(query: &str) -> Option<&str> {
    query.split('&').find_map(|part| part.strip_prefix("token="))
}

/// In a time that does not depend on where they differ.
fn is_same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    let difference = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    given.len() == token.len() && difference == 0
}

/// Is this a name of the host, with or without a port, that nobody else can give an address?
fn is_own_name(host: &str) -> bool {
    let name = HostPort::host_of(host).unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn random_token() -> Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).context("the system has no random numbers for a token")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The address for a browser.
fn url(address: &HostPort, ip: IpAddr, token: Option<&str>) -> String {
    let host = host_name();
    let named = HostPort::new(&host, address.port()).filter(|_| ip.is_unspecified());
    let query = token.map_or_else(String::new, |token| format!("?token={token}"));
    format!("http://{}/{query}", named.as_ref().unwrap_or(address))
}

/// Sizes and times of the files that the page is made of.
fn stamps(dirs: &[PathBuf]) -> Vec<Option<(u64, SystemTime)>> {
    let files =
        |dir: &PathBuf| [Jsonl::FILE, Summary::FILE, CONFIG_FILE].map(|name| dir.join(name));
    let stamp = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    dirs.iter().flat_map(files).map(|path| stamp(&path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(served: &Served, path: &str, query: &str, host: Option<&str>) -> String {
        let answer = served.answer(HttpRequest { path, query, host });
        format!("{answer:?}").split('"').nth(1).unwrap()[..3].to_owned()
    }

    #[test]
    fn a_page_for_others_needs_its_token_and_one_for_this_host_its_name() {
        let page = || Mutex::new(Page { text: "page".into(), version: "1".into() });
        let is_wanted = || AtomicBool::new(false);
        let token = random_token().unwrap();
        let served = Served { page: page(), token: Some(token.clone()), is_wanted: is_wanted() };
        let short = &token[..token.len() - 1];
        for (query, expected) in [
            (&*format!("token={token}"), "200"),
            (&*format!("a=b&token={token}"), "200"),
            ("", "403"),
            ("token=", "403"),
            (&*format!("token={short}"), "403"),
            (&*format!("token={token}0"), "403"),
            (&*format!("token={short}x"), "403"),
        ] {
            for path in ["/", "/version"] {
                assert_eq!(status(&served, path, query, Some("a")), expected, "{query}");
            }
        }
        assert_ne!(random_token().unwrap(), token);

        let served = Served { page: page(), token: None, is_wanted: is_wanted() };
        assert_eq!(status(&served, "/../summary.json", "", None), "404");
        assert!(!served.is_wanted.load(Ordering::Relaxed));
        for (host, expected) in [
            (None, "200"),
            (Some("127.0.0.1:8440"), "200"),
            (Some("[::1]:8440"), "200"),
            (Some("LocalHost"), "200"),
            (Some("example.org:8440"), "403"),
            (Some(""), "403"),
        ] {
            assert_eq!(status(&served, "/", "", host), expected, "{host:?}");
        }
        assert!(served.is_wanted.load(Ordering::Relaxed));
    }

    #[test]
    fn the_address_is_one_for_a_browser() {
        let url = |address: &str, ip: &str, token| {
            url(&address.parse().unwrap(), ip.parse().unwrap(), token)
        };
        assert_eq!(url(ADDRESS, "127.0.0.1", None), "http://127.0.0.1:8440/");
        let other = url("[2001:db8::1]:80", "2001:db8::1", Some("ab"));
        assert_eq!(other, "http://[2001:db8::1]:80/?token=ab");
        let any = url("0.0.0.0:80", "0.0.0.0", Some("ab"));
        assert!(any.ends_with(":80/?token=ab") && !any.contains("0.0.0.0"), "{any}");
    }
}

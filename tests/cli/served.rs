//! `report --serve`: the page follows a run, and what its clients do costs only themselves.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::interrupted::Running;
use super::{lockstep, metrics, summary, text, train_args};

/// The answer to a request, and an empty text if there is none.
fn ask(address: SocketAddr, request: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn get(address: SocketAddr, target: &str) -> String {
    ask(address, &format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// The server of a run's page, until it answers.
fn serving(dir: &Path, out: &Path, host: &str) -> (SocketAddr, Running) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = format!("{host}:{}", address.port());
    let args = ["report", text(out), "--serve", &listen].map(str::to_owned);
    let (mut server, _) = Running::with_stderr_in(dir, &args);
    server.until("the server", |_| TcpStream::connect(address).is_ok());
    (address, server)
}

fn run(dir: &Path) -> std::path::PathBuf {
    let out = dir.join("out");
    let sets = ["model.hidden=[8]", "train.epochs=1"];
    lockstep(&train_args(&sets, &["--out", text(&out)])).succeeded();
    out
}

#[test]
fn a_page_that_is_served_follows_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = run(dir.path());
    let (address, mut server) = serving(dir.path(), &out, "127.0.0.1");
    let page = get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{page}");
    assert!(body(&page).starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    let version = |answer: &str| body(answer).to_owned();
    let first = version(&get(address, "/version"));
    assert!(body(&page).contains(&format!("data-version=\"{first}\"")));
    assert!(body(&page).contains("connect-src 'self'"), "it asks for newer ones, and nothing else");

    // Clients that say nothing, and some that say too much.
    let silent: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(10_000));
    for (request, status) in [
        ("\x16\x03\x01\r\n\r\n", "400"),
        (&*long, "431"),
        ("POST / HTTP/1.1\r\n\r\n", "405"),
        ("GET /../out/summary.json HTTP/1.1\r\n\r\n", "404"),
        ("GET /%2e%2e/summary.json HTTP/1.1\r\n\r\n", "404"),
        ("GET /summary.json HTTP/1.1\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "403"),
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }

    let mut metrics = OpenOptions::new().append(true).open(out.join("metrics.jsonl")).unwrap();
    metrics.write_all(b"{\"step\":22,\"loss\":0.12345}\n").unwrap();
    server.until("another version", |_| {
        let found = version(&get(address, "/version"));
        !found.is_empty() && found != first
    });
    assert!(get(address, "/").contains("0.12345"));
    // What cannot be read leaves the last page.
    fs::remove_dir_all(&out).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(get(address, "/").contains("0.12345"));
    drop(silent);
    server.send("INT");
    assert_eq!(server.exit_code(), Some(130));
    assert_eq!(server.stdout(), format!("http://{address}/\n"));
}

/// The page of a run that goes on, while 100 clients are silent, slow or send garbage.
#[test]
fn what_clients_do_changes_nothing_in_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let [alone, watched] = ["alone", "watched"].map(|name| dir.path().join(name));
    let sets = ["model.hidden=[8]", "train.epochs=150"];
    lockstep(&train_args(&sets, &["--out", text(&alone)])).succeeded();
    let train = train_args(&sets, &["--out", text(&watched)]);
    let (mut run, said) = Running::with_stderr_in(dir.path(), &train);
    run.until_begun(&watched);
    let server = tempfile::tempdir().unwrap();
    let (address, mut server) = serving(server.path(), &watched, "127.0.0.1");
    let (mut others, mut num_answers) = (vec![], 0);
    run.until("its end", |child| {
        let garbage = [&b""[..], b"GET /vers", b"\x16\x03\x01\0\xff\n\r", &[b'a'; 9000]];
        if others.len() < 100 {
            others.extend(garbage.iter().filter_map(|garbage| {
                let mut stream = TcpStream::connect(address).ok()?;
                // One that was refused or cut off is what is wanted.
                let _ = stream.write_all(garbage);
                Some(stream)
            }));
        }
        num_answers += usize::from(get(address, "/version").starts_with("HTTP/1.1 200"));
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(run.exit_code(), Some(0), "{}", fs::read_to_string(said).unwrap());
    assert_eq!(others.len(), 100);
    assert!(num_answers > 0);
    assert_eq!(summary(&alone)["params_fingerprint"], summary(&watched)["params_fingerprint"]);
    assert_eq!(metrics(&watched).len(), 3300);
    drop(others);
    server.until("an answer", |_| get(address, "/").starts_with("HTTP/1.1 200"));
}

#[test]
fn others_need_the_token_that_was_printed() {
    let dir = tempfile::tempdir().unwrap();
    let out = run(dir.path());
    let (address, mut server) = serving(dir.path(), &out, "0.0.0.0");
    assert!(get(address, "/").starts_with("HTTP/1.1 403 "));
    assert!(get(address, "/?token=0123456789abcdef0123456789abcdef").starts_with("HTTP/1.1 403 "));
    server.send("TERM");
    assert_eq!(server.exit_code(), Some(143));
    let printed = server.stdout();
    let (_, token) = printed.trim_end().split_once("/?token=").unwrap();
    assert_eq!(token.len(), 32, "{printed}");
    assert!(!printed.contains("0.0.0.0"), "{printed}");
}

#[test]
fn what_cannot_be_served_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let out = run(dir.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = lockstep(&["report", text(&out), "--serve", &address]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let said = format!("cannot listen on {address}; choose another address with --serve HOST:PORT");
    assert!(done.stderr.contains(&said) && done.stderr.contains("in use"), "{}", done.stderr);
    let done = lockstep(&["report", text(&dir.path().join("none")), "--serve", &address]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    for args in [["--serve", "here"], ["--json", "--serve"]] {
        let done = lockstep(&[&["report", text(&out)][..], &args].concat());
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
    }
}

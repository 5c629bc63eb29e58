//! The endpoint shows the run, and what its clients do changes nothing in it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::interrupted::Running;
use super::{file, lockstep, metrics, summary, text, train_args};

/// An address that nobody listens on.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The answer to a scrape, as far as it came.
fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Some(body.to_owned())
}

/// The numbers of an answer, without the label that all have.
fn numbers(body: &str) -> BTreeMap<String, f64> {
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let numbers = samples.filter_map(|line| {
        let (name, value) = line.split_once("{process=\"0\"} ")?;
        Some((name.strip_prefix("lockstep_").unwrap().to_owned(), value.parse().unwrap()))
    });
    numbers.collect()
}

const SETS: [&str; 4] =
    ["model.hidden=[8]", "train.epochs=30", "train.eval_every=100", "checkpoint.every_steps=100"];

/// A scrape late in a run that is scraped all the time, while others are slow or send garbage.
fn last_scrape(dir: &Path) -> String {
    let (address, out) = (free_address(), dir.join("out"));
    let endpoint = format!("observe.prometheus={address}");
    let sets: Vec<_> = SETS.iter().copied().chain([&*endpoint]).collect();
    let (mut run, stderr) =
        Running::with_stderr_in(dir, &train_args(&sets, &["--out", text(&out)]));
    run.until_begun(&out);
    let (mut last, mut others) = (None, vec![]);
    run.until("its end", |child| {
        let garbage = [&b"GET /met"[..], b"\x16\x03\x01\0\xff\n\r", b"\r\n\r\nGET", &[b'a'; 9000]];
        if others.len() < 100 {
            others.extend(TcpStream::connect(address).map(|mut stream| {
                // One that was refused or cut off is what is wanted.
                let _ = stream.write_all(garbage[others.len() % 4]);
                stream
            }));
        }
        let scraped = scrape(address).filter(|body| body.ends_with("# EOF\n"));
        last = scraped.or(last.take());
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(run.exit_code(), Some(0), "{}", std::fs::read_to_string(&stderr).unwrap());
    assert_eq!(others.len(), 100);
    last.unwrap()
}

#[test]
fn slow_clients_and_garbage_cost_only_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("alone");
    lockstep(&train_args(&SETS, &["--out", text(&alone)])).succeeded();
    let body = last_scrape(dir.path());
    let out = dir.path().join("out");
    assert_eq!(summary(&out)["params_fingerprint"], summary(&alone)["params_fingerprint"]);

    let (found, lines) = (numbers(&body), metrics(&out));
    let num_steps = found["steps"] as usize;
    assert!(num_steps > 0, "{body}");
    let line = lines[num_steps - 1].as_object().unwrap();
    for (name, value) in line.iter().filter(|(name, _)| *name != "step") {
        // The endpoint keeps the last evaluation, a line has its own.
        if !name.starts_with("eval_") {
            assert_eq!(Some(found[name]), value.as_f64(), "{name}");
        }
    }
    assert_eq!(found["planned_steps"], 660.0);
    let sum = |field: &str| {
        lines[..num_steps].iter().map(|line| line[field].as_f64().unwrap() / 1e3).sum::<f64>()
    };
    for phase in ["step", "launch_delay", "host", "data_wait"] {
        let (total, expected) =
            (found[&format!("{phase}_secs_total")], sum(&format!("{phase}_ms")));
        assert!((total - expected).abs() <= 1e-9 * expected.max(1.0), "{phase}: {total}");
    }
}

#[test]
fn a_port_in_use_is_found_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let endpoint = format!("observe.prometheus=127.0.0.1:{port}");
    let done = lockstep(&train_args(&[&endpoint], &["--out", text(&out)]));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let said = format!("error: cannot listen on port {port} of 127.0.0.1: Address already in use");
    assert!(done.stderr.contains(&said), "{}", done.stderr);
    assert!(!out.exists());
    let done = lockstep(&train_args(&["observe.prometheus=localhost"], &[]));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("HOST:PORT"), "{}", done.stderr);
}

/// By the parser of Prometheus's client library, which pip installs.
#[test]
#[ignore = "installs the parser; of the full set"]
fn the_parser_of_prometheus_accepts_the_endpoint() {
    const READER: &str = r#"
import json, sys
from prometheus_client.openmetrics import parser
samples = [s for f in parser.text_string_to_metric_families(sys.stdin.read()) for s in f.samples]
json.dump([[s.name, s.labels, s.value] for s in samples], sys.stdout)
"#;
    let dir = tempfile::tempdir().unwrap();
    let body = last_scrape(dir.path());
    let venv = dir.path().join("venv");
    let run = |program: &Path, args: &[&str], input: &str| {
        let mut command = assert_cmd::Command::from_std(Command::new(program));
        let output = command.args(args).write_stdin(input).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(Path::new("python3"), &["-m", "venv", text(&venv)], "");
    run(&venv.join("bin/pip"), &["install", "--quiet", "prometheus-client"], "");
    let reader = file(dir.path(), "reader.py", READER.as_bytes());
    let read = run(&venv.join("bin/python"), &[text(&reader)], &body);
    let samples: Vec<(String, BTreeMap<String, String>, f64)> =
        serde_json::from_slice(&read).unwrap();
    let (run, others): (Vec<_>, Vec<_>) =
        samples.into_iter().partition(|(name, ..)| name == "lockstep_run_info");
    assert_eq!((&*run[0].1["backend"], run[0].2), ("cpu", 1.0));
    let named = others.into_iter().map(|(name, labels, value)| {
        assert_eq!(labels, BTreeMap::from([("process".to_owned(), "0".to_owned())]));
        (name.strip_prefix("lockstep_").unwrap().to_owned(), value)
    });
    assert_eq!(named.collect::<BTreeMap<_, _>>(), numbers(&body));
}

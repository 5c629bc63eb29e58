//! Pods of indexed Jobs and of JobSets.
//!
//! An indexed Job knows its index only; the number of pods must be given, since Kubernetes does not
//! say it. JobSets with several Jobs need `JOB_INDEX` and `REPLICATED_JOB_REPLICAS`, from the pod's
//! annotations `jobset.sigs.k8s.io/job-index` and `jobset.sigs.k8s.io/replicatedjob-replicas`: each
//! Job counts its pods from 0.

use std::path::Path;

use super::error::EnvironmentError;
use super::launchers::Launched;
use super::probe::Probe;
use super::{DEFAULT_PORT, Known};
use crate::config::HostPort;

type Result<T> = std::result::Result<T, EnvironmentError>;

const JOB: &str = "JOB_INDEX";
const NUM_JOBS: &str = "REPLICATED_JOB_REPLICAS";
const JOBSET: &str = "JOBSET_NAME";

/// Adds the index among the pods of all Jobs, and the address of the first pod.
pub(super) fn complete(probe: &Probe, explicit: &Launched, found: &mut Launched) -> Result<()> {
    let Some(pod) = found.index.clone() else { return Ok(()) };
    let job = probe.number(JOB)?;
    let num_jobs = probe.count(NUM_JOBS)?;
    match (&job, &num_jobs) {
        (Some(job), Some(num_jobs)) if num_jobs.value > 1 => {
            let Some(count) = &explicit.count else { return Ok(()) };
            let per_job = count.value / num_jobs.value;
            if !count.value.is_multiple_of(num_jobs.value) || pod.value >= per_job {
                found.problem = Some(EnvironmentError::UnevenJobs {
                    count: count.clone(),
                    num_jobs: num_jobs.clone(),
                    pod: pod.clone(),
                });
            }
            let value = job.value.saturating_mul(per_job).saturating_add(pod.value);
            let from = format!("{}, {}", job.from, pod.from);
            found.index = Some(Known { value, from });
        }
        (Some(job), None) if job.value > 0 => {
            return Err(EnvironmentError::Incomplete { present: JOB, missing: NUM_JOBS });
        }
        _ => {}
    }
    let Some(hostname) = probe.text("HOSTNAME") else { return Ok(()) };
    // Pods of a Job are named job-0, job-1, ...; those of a JobSet set-job-0-0, set-job-0-1, ...
    let Some(first) = hostname.value.strip_suffix(&format!("-{}", pod.value)) else {
        return Ok(());
    };
    let domain = domain(probe, &hostname.value);
    let jobset = probe.text(JOBSET);
    if job.is_none() {
        check_job(first, &hostname.value, jobset.as_ref(), domain.as_deref(), found);
    }
    let first = match job.and_then(|job| first.strip_suffix(&format!("-{}", job.value))) {
        Some(prefix) => format!("{prefix}-0-0"),
        None => format!("{first}-0"),
    };
    let domain = match domain {
        Some(domain) => Some((domain, "/etc/hosts")),
        // The headless service of a JobSet has its name.
        None => jobset.map(|set| (set.value, JOBSET)),
    };
    found.coordinator = domain.and_then(|(domain, from)| {
        let value = HostPort::new(&format!("{first}.{domain}"), DEFAULT_PORT)?;
        Some(Known { value: value.to_string(), from: format!("HOSTNAME, {from}") })
    });
    Ok(())
}

/// Without `JOB_INDEX`, a pod of the second Job of a JobSet has the index of one of the first.
/// `job` is the name of the pod's Job, `domain` that of its headless service, which is named as the
/// JobSet.
fn check_job(
    job: &str,
    hostname: &str,
    jobset: Option<&Known<String>>,
    domain: Option<&str>,
    found: &mut Launched,
) {
    let Some((template, number)) = job.rsplit_once('-') else { return };
    let Some(number) = number.parse::<usize>().ok().filter(|number| *number > 0) else { return };
    let is_of = |set: &str| template.strip_prefix(set).is_some_and(|rest| rest.starts_with('-'));
    let service = domain.and_then(|domain| domain.split('.').next());
    if jobset.is_some_and(|set| is_of(&set.value)) {
        let hostname = hostname.to_owned();
        found.problem = Some(EnvironmentError::UnknownJob { hostname, job: number });
    } else if service.is_some_and(is_of) {
        // It could be a Job of this name, with a service that is named similarly.
        found.doubts.push(format!(
            "HOSTNAME is {hostname}, which is how a pod of job {number} of a JobSet is named, but \
             {JOB} is not set: if it is one, set {JOB} and {NUM_JOBS}, or two pods have the same \
             index"
        ));
    }
}

/// The domain of a pod with a headless service, which Kubernetes writes to `/etc/hosts`.
fn domain(probe: &Probe, hostname: &str) -> Option<String> {
    let hosts = (probe.file)(Path::new("/etc/hosts"))?;
    let names = hosts.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace().skip(1)
    });
    let mut domains = names.filter_map(|name| name.strip_prefix(hostname)?.strip_prefix('.'));
    domains.next().map(str::to_owned)
}

#!/bin/bash
# A run on four nodes with four GPUs each under Slurm: sbatch examples/cluster/slurm.sh
# Before: openssl rand -hex 32 > ~/lockstep-token && chmod 600 ~/lockstep-token
#SBATCH --job-name=lockstep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
# Two minutes before the time is up, all processes save after the same step and end with 143; Slurm starts the job again.
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
LOCKSTEP_TOKEN=$(cat ~/lockstep-token)
export LOCKSTEP_TOKEN
# --resume continues from the newest checkpoint, or starts if there is none. RUN must be on a file system that all nodes share.
RUN=${RUN:-$HOME/runs/gpt}
srun --kill-on-bad-exit=1 lockstep train examples/gpt2-124m.toml --backend cuda --set 'mesh.data="auto"' --out "$RUN" --resume
code=$?
# Requeued by hand where the cluster does not do it after a signal.
if [ "$code" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"

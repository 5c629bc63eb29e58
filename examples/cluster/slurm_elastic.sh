#!/bin/bash
# A run under Slurm that goes on when nodes are lost: sbatch examples/cluster/slurm_elastic.sh
# Of five nodes with four GPUs each, four train and one is a spare. If it is used up, the run goes on with three, then with two; below that it waits.
# Before: openssl rand -hex 32 > ~/lockstep-token && chmod 600 ~/lockstep-token
#SBATCH --job-name=lockstep
#SBATCH --nodes=5
# The allocation stays when a node fails.
#SBATCH --no-kill
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
# Two minutes before the time is up, all save and end with 143; Slurm starts the job again.
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
LOCKSTEP_TOKEN=$(cat ~/lockstep-token)
export LOCKSTEP_TOKEN
# On a file system that all nodes share.
RUN=${RUN:-$HOME/runs/gpt}
# This script runs on the first node, and so does the coordinator: Slurm ends the job when that node is lost, and starts it again.
# On a login node, the coordinator survives that: start it there, and set COORDINATOR to its address.
if [ -z "${COORDINATOR:-}" ]; then
  COORDINATOR=$(hostname):61400
  lockstep coordinator --listen "$COORDINATOR" &
fi
# One process on each node has its four GPUs. mesh.data is that of the four nodes; what there is of them divides the same global batch.
# A supervisor that ends does not end the others.
srun --no-kill --kill-on-bad-exit=0 lockstep launch --hosts 2:4 --spares 1 --processes-per-host 1 \
  --coordinator "$COORDINATOR" --external-coordinator \
  -- train examples/gpt2-124m.toml --backend cuda --set mesh.data=16 --set cluster.on_slow=replace --out "$RUN" --resume
code=$?
# Requeued by hand where the cluster does not do it after a signal.
if [ "$code" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"

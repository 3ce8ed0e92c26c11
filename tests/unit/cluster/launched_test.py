#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts real processes as launchers start them: under the mpirun of this machine, and with the variables that others
set. They meet, or each says at once, in one sentence, what is missing.

usage: launched_test.py PROGRAM [MPIRUN...]
"""
import os
import re
import socket
import subprocess
import sys

PROGRAM, *MPIRUN = sys.argv[1:]
RANKS = 4
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "SLURM_", "TORCHELASTIC_", "PMI", "MPI_", "MV2_",
             "FLUX_", "PALS_", "PIPELINING_")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
# A run that lacks something must not wait for it: the processes themselves would, for 20 seconds.
AT_ONCE = 10


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(of_rank, ranks=RANKS, timeout=60):
    """Starts a process for each rank with the variables that of_rank(rank) gives; their codes, outputs and errors."""
    all_of_them = [subprocess.Popen([PROGRAM], env={**PLAIN, **{k: str(v) for k, v in of_rank(rank).items()}},
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    return [(*each.communicate(timeout=timeout), each.returncode) for each in all_of_them]


def check_met(of_rank, launcher):
    ended = start(of_rank)
    for rank, (out, error, code) in enumerate(ended):
        assert (code, error) == (0, ""), ended
        assert out == f"rank {rank} of {RANKS}, number {rank} on its machine, by {launcher}, has met the others\n", ended


def check_refused(of_rank, sentence, ranks=RANKS):
    ended = start(of_rank, ranks, timeout=AT_ONCE)
    for out, error, code in ended:
        assert (out, error, code) == ("", f"launched: {sentence}\n", 1), ended


def several_machines(launcher, option):
    return (f"launch: the {RANKS} ranks are on several machines, and {launcher} does not say which of them is rank 0's; "
            f"set MASTER_ADDR for all of them, as in: mpirun {option}")


def check_hydra():
    """MPICH and Intel MPI."""
    port = free_port()

    def task(on_this_machine, **more):
        return lambda rank: {"PMI_RANK": rank, "PMI_SIZE": RANKS, "MPI_LOCALRANKID": rank,
                             "MPI_LOCALNRANKS": on_this_machine, "MASTER_PORT": port, **more}
    check_met(task(RANKS), "MPICH")
    check_met(task(2, MASTER_ADDR="127.0.0.1"), "MPICH")
    check_refused(task(2), several_machines("MPICH", "-genv MASTER_ADDR node0"))


def check_slurm():
    port = free_port()
    job = {"SLURM_JOB_ID": 77, "SLURM_JOB_NODELIST": "127.0.0.1", "SLURM_NTASKS": RANKS, "MASTER_PORT": port}

    def task(rank, **more):
        return {**job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": RANKS, **more}
    check_met(task, "Slurm")
    check_met(lambda rank: task(rank, PMI_RANK=rank, PMI_SIZE=RANKS), "Slurm")  # srun --mpi=pmi2
    script = (f"launch: this is the script of a Slurm job of {RANKS} tasks, and not one of its tasks; start the program "
              "with srun")
    check_refused(lambda rank: {**job, "SLURM_PROCID": 0, "SLURM_LOCALID": 0}, script, ranks=1)
    # The script is a step of its own in later versions.
    check_refused(lambda rank: {**job, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_STEP_NUM_TASKS": 1,
                                "SLURM_STEP_ID": 4294967291}, script, ranks=1)


def check_torchrun():
    port = free_port() - 1  # its own; the store takes the next one

    def task(rank):
        return {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS,
                "MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": 0}
    check_met(task, "torchrun")
    check_refused(lambda rank: {**task(rank), "RANK": RANKS + rank},
                  f"launch: RANK is {RANKS}, but must be below WORLD_SIZE, which is {RANKS}", ranks=1)
    # All ranks say so at once: none waits for a rank 0 that cannot listen there.
    check_refused(lambda rank: {**task(rank), "MASTER_PORT": 99999}, "launch: MASTER_PORT is 99999, but ports are 1 to 65535")


def check_others():
    """Flux, PALS and MVAPICH2, and PMIx alone, which says a number and not of how many."""
    port = free_port()

    def task(rank, size, local_rank, **more):
        return lambda number: {rank: number, size: RANKS, local_rank: number, "MASTER_PORT": port, **more}
    flux = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")
    check_met(task(*flux, FLUX_JOB_NNODES=1, FLUX_JOB_ID="f7"), "Flux")
    check_refused(task(*flux, FLUX_JOB_NNODES=2), several_machines("Flux", "").replace("mpirun ", "flux run --env=MASTER_ADDR=node0"))
    check_met(task("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"), "PALS")
    check_met(task("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"), "MVAPICH2")
    check_refused(lambda rank: {"PMIX_RANK": 3, "PMIX_NAMESPACE": "7"},
                  "launch: PMIX_RANK is 3, so this is one of several processes, but no variable says of how many; set RANK "
                  "and WORLD_SIZE for each, or use another launcher")


def check_open_mpi():
    """Under its mpirun, which pretends in one case that the ranks are on two machines."""
    port = free_port()

    def run(*before, address=None, timeout=60):
        env = {**PLAIN, "MASTER_PORT": str(port), **({"MASTER_ADDR": address} if address else {})}
        return subprocess.run([*MPIRUN, "-n", str(RANKS), *before, PROGRAM], env=env, capture_output=True, text=True,
                              timeout=timeout)
    pretend = ("env", "OMPI_COMM_WORLD_LOCAL_SIZE=2")
    for result in (run(), run(*pretend, address="127.0.0.1")):
        assert result.returncode == 0, result
        said = sorted(re.findall(r"^rank (\d) of 4, number \1 on its machine, by Open MPI, has met the others$",
                                 result.stdout, re.MULTILINE))
        assert said == ["0", "1", "2", "3"], result
    result = run(*pretend, timeout=AT_ONCE)
    assert result.returncode != 0 and result.stdout == "", result
    # When one process has ended, mpirun ends those that have not got so far.
    said = re.findall(r"^launched: (.*)$", result.stderr, re.MULTILINE)
    assert said and set(said) == {several_machines("Open MPI", "-x MASTER_ADDR=node0")}, result


if __name__ == "__main__":
    check_hydra()
    check_slurm()
    check_torchrun()
    check_others()
    VERSION = subprocess.run([*MPIRUN, "--version"], capture_output=True, text=True) if MPIRUN else None
    if VERSION and "open" in VERSION.stdout.lower() and "mpi" in VERSION.stdout.lower():
        check_open_mpi()
    else:
        print("not under mpirun: there is none of Open MPI")

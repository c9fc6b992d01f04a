"""A real Slurm on this machine: munged, slurmctld and slurmd, with everything in one folder.

It needs root and the packages slurm-wlm and munge. The node has two processors, whatever the
machine has, and what a node does is done by this machine.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
CONFIGURATION = """
ClusterName=fedwmsam-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why Slurm cannot be started here; empty if it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    lacking = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if lacking:
        return f"{lacking[0]} is not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@dataclass
class Cluster:
    """A running Slurm; `environment` is what its commands need."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Cluster":
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.folder / "munge").chmod(0o755)
        configuration = self.folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                folder=self.folder,
                controller_port=free_port(),
                node_port=free_port(),
            )
        )
        self.environment = os.environ | {
            "SLURM_CONF": str(configuration),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin",
        }
        try:
            self.start_munged()
            self.start_controller()
            self.call("slurmd", "-f", str(configuration))
            self.wait_until(lambda: "idle" in self.call("sinfo", "--noheader", "-o", "%T"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the jobs and the daemons, each by the number that it wrote down itself."""
        self.cancel_all()
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            self.kill(name, signal.SIGTERM)

    def start_munged(self) -> None:
        """Start the daemon that signs what Slurm's programs tell each other."""
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        names |= {"seed-file": "seed"}
        flags = [f"--{flag}={self.folder}/munge/{name}" for flag, name in names.items()]
        self.call("munged", "--force", *flags)  # also below a folder that others cannot enter

    def start_controller(self) -> None:
        """Start slurmctld, also again after it was killed, and wait until it answers."""
        self.call("slurmctld", "-f", self.environment["SLURM_CONF"])
        self.wait_until(lambda: "is UP" in self.call("scontrol", "ping", check=False))

    def kill(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon and wait for its end."""
        try:
            pid = int((self.folder / name).read_text())
            os.kill(pid, number)
        except (OSError, ValueError):
            return
        self.wait_until(lambda: not Path(f"/proc/{pid}").exists())

    def call(self, *words: str, check: bool = True) -> str:
        """Run a command with this Slurm and return its output."""
        outcome = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert not check or outcome.returncode == 0, (words, outcome.stderr)
        return outcome.stdout

    def jobs(self, state: str = "all") -> list[str]:
        """Return the jobs in the queue, such as 5_0, or those in one state."""
        states = [] if state == "all" else [f"--states={state}"]
        return self.call(
            "squeue", "--noheader", "--array", *states, "-o", "%i", check=False
        ).split()

    def cancel_all(self) -> None:
        """End all jobs, and wait until they have ended."""
        if self.jobs():
            self.call("scancel", "--user=root", check=False)
            self.wait_until(lambda: not self.jobs())

    def requeue(self, job: str) -> None:
        """Preempt a job: it is ended and put back into the queue, where it may start at once.

        Slurm lets it wait for two minutes, which is not waited for here.
        """
        self.call("scontrol", "requeue", job)
        self.wait_until(lambda: job in self.jobs("PENDING"))
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 180) -> None:
        """Wait for something to be so; fail if it takes too long."""
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.1)


def free_port() -> int:
    """Return the number of a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

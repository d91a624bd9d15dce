#!/usr/bin/env python3
"""Launches a sandboxed run by `docker run` alone, and keeps the record with host-collector.

    launch.py [OPTION OF host-collector prepare]... IMAGE -- COMMAND [ARGUMENT]...

`prepare` registers the run, has a process of its own attend to it, and says how to launch; `finish`
waits for the line in the session log and prints it. What is between is any launcher's business.
"""

import json
import os
import subprocess
import sys


def host_collector(*arguments):
    """What a verb prints, which is one JSON object."""
    done = subprocess.run(["host-collector", *arguments], stdout=subprocess.PIPE)
    if done.returncode != 0:
        # It has said why, on standard error.
        sys.exit(done.returncode)
    return json.loads(done.stdout)


run = host_collector("prepare", *sys.argv[1:])
# The secrets of the run are in `environment`, for nobody but the engine's client to see.
container = subprocess.run(
    [run["engine"], *run["arguments"]], env=os.environ | run["environment"]
)
line = host_collector(
    "finish", run["run_id"], "--exit-code", str(container.returncode)
)
# The container is the launcher's: what is of interest in it can be looked at before this.
label = "label=sandbox-egress.run=" + run["run_id"]
found = subprocess.run(
    [run["engine"], "ps", "--all", "--quiet", "--filter", label], stdout=subprocess.PIPE
)
for container_id in found.stdout.decode().split():
    subprocess.run([run["engine"], "rm", container_id], stdout=subprocess.DEVNULL)
print(json.dumps(line, indent=2), file=sys.stderr)
sys.exit(container.returncode)

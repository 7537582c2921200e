# SPDX-License-Identifier: Apache-2.0
"""One piece of work with one queue: a task as JSON is the argument, its figures go to stdout."""

import json
import sys

from benchmarks.peer_queues.work import Task, run

if __name__ == "__main__":
    print(json.dumps(run(Task(**json.loads(sys.argv[1])))), flush=True)

"""Everything is killed, paused and cut at random, and every job is accounted for.

`python -m tests.chaos --help`; `docs/chaos.md` says what is done and what is checked.

    plan.py        what a seed comes to: the jobs of each producer, and when what is broken
    ledger.py      what was promised and seen, kept in files outside Redis
    producing.py   a producer's process
    stage.py       Redis, proxies, workers and producers, kept running by a supervisor
    deeds.py       what is done to them
    recovery.py    how long a killed worker's jobs wait for another
    evidence.py    what ledgers, records and logs say when it is over
    accounting.py  whether that adds up
    run.py         all of it in order; report.py tells of it
"""

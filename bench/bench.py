#!/usr/bin/env python3
"""Measures the rows in turns, a round after the other, so that what else the machine does falls on all of them; then prints the table."""
import argparse
import json
import os
import sys
import time
from pathlib import Path

import cases
import table
from rows import ROWS


def arguments():
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds a load, without the peers")
    parser.add_argument("--rows", help="only these rows, with commas between")
    parser.add_argument("--cases", default="speed,cold,records,kills", help="only these cases (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="how often each row is visited (default 3)")
    parser.add_argument("--secs", type=int, help="seconds of each load (default 6)")
    parser.add_argument("--soak", type=int, default=0, metavar="SECS", help="also watch the memory of sless under load for so long")
    parser.add_argument("--out", type=Path, help="file for the results, a line of JSON each (default: results.jsonl in BENCH_HOME)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="measure nothing, print the table of these results")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.secs = args.secs or (2 if args.quick else 6)
    args.out = args.out or Path(os.environ["BENCH_HOME"]) / "results.jsonl"
    return args


def main():
    args = arguments()
    if args.table:
        return table.show([json.loads(line) for line in args.table.read_text().splitlines()])
    rows = [row for row in ROWS.values() if (row.name in args.rows.split(",") if args.rows else not (args.quick and row.kind == "peer"))]
    missing = [row for row in rows if not all(map(os.path.exists, row.needs))]
    rows = [row for row in rows if row not in missing]
    for row in missing:
        if row.kind != "peer":
            raise SystemExit(f"{row.name}: {row.needs[0]} is not there; make it with: scripts/build")
        print(f"{row.name}: left out, {next(file for file in row.needs if not os.path.exists(file))} is not there", file=sys.stderr)
    plan = {"speed": lambda row: cases.speed(row, args.secs), "cold": lambda row: cases.cold(row, 3 if args.quick else 5),
            "records": lambda row: cases.records(row, args.secs), "kills": lambda row: cases.kills(row, 2 if args.quick else 5)}
    wanted = args.cases.split(",")
    results = []
    with open(args.out, "w") as out:
        def run(case, row, number, measure):
            try:
                found = measure(row)
                for result in found or ():
                    keep({"row": row.name, "round": number} | result)
            except Exception as error:      # one row in trouble must not cost the others' results; it is told of and fails the run
                keep({"row": row.name, "round": number, "case": "failed", "what": case, "error": str(error)})

        def keep(result):
            results.append(result)
            print(json.dumps(result), file=out, flush=True)
            print(json.dumps(result), file=sys.stderr)

        keep({"row": "", "case": "machine", "cores": os.cpu_count(), "kernel": os.uname().release, "at": time.strftime("%Y-%m-%d")})
        for number in range(args.rounds):
            for case in wanted:
                for row in rows:
                    run(case, row, number, plan[case])
        if args.soak:
            for row in rows:
                run("soak", row, 0, lambda row: cases.soak(row, args.soak))
    print(f"results: {args.out}", file=sys.stderr)
    table.show(results)
    return 1 if any(result["case"] == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The tables of a run as Markdown: goal by goal, then row by row. Medians over the rounds."""
import statistics


class Results:
    def __init__(self, results):
        self.results = results

    def values(self, row, case, field, **where):
        return [r[field] for r in self.results if r["row"] == row and r["case"] == case and r.get(field) is not None and all(r.get(k) == v for k, v in where.items())]

    def median(self, row, case, field, **where):
        values = self.values(row, case, field, **where)
        return statistics.median(values) if values else None

    def worst(self, row, case, field, **where):
        return max(self.values(row, case, field, **where), default=None)

    def rows(self):
        return list(dict.fromkeys(r["row"] for r in self.results if r["row"]))


def goals(found):
    """(what, measured, unit, what the limit row has, goal, whether a larger figure is better)"""
    for lang, name in (("py", "python"), ("node", "node")):
        sless, front, pipe = f"sless-{lang}", f"limit-front-{lang}1", f"limit-pipe4-{lang}1"

        def against(limit, factor, case, field, **where):
            """The measured figure, the limit row's, and the goal: a multiple of it."""
            base = found.median(limit, case, field, **where)
            return found.median(sless, case, field, **where), base, base and base * factor

        yield f"{name}: c1, p50", *against(front, 1.25, "hello", "p50_ms", connections=1), "ms", False
        yield f"{name}: c16, one worker", *against(pipe, 0.7, "hello", "rps", connections=16), "/s", True
        yield f"{name}: CPU a call at c16", found.median(sless, "hello", "cpu_us", connections=16), found.median(pipe, "hello", "cpu_us", connections=16), 60, "µs", False
        yield f"{name}: cold start", *against(front, 1.3, "cold", "ms"), "ms", False
        for op in ("sleep", "busy"):
            yield f"{name}: next answer after a timeout ({op})", found.median(sless, "timeout", "next_ms", op=op), None, 50, "ms", False
        yield f"{name}: next answer after an exit", found.median(sless, "exit", "next_ms"), None, 50, "ms", False
        yield f"{name}: timeout answered late by, worst", max(filter(None, (found.worst(sless, c, "late_ms") for c in ("timeout", "family"))), default=None), None, 50, "ms", False
        yield f"{name}: family gone after limit + grace, worst", found.worst(sless, "family", "gone_after_grace_ms"), None, 100, "ms", False
        yield f"{name}: 1 MiB echo, p50", *against(front, 1.15, "echo", "p50_ms"), "ms", False
        yield f"{name}: 1,000 log lines a call, p50", *against(front, 1.5, "logs", "p50_ms"), "ms", False
        yield f"{name}: supervisor's RSS, idle", found.worst(sless, "rss", "mib", when="idle"), None, 5, "MiB", False
        yield f"{name}: supervisor's RSS, after load", found.worst(sless, "rss", "mib", when="after load"), None, 8, "MiB", False
        soak = found.values(sless, "soak", "mib")
        if soak:
            yield f"{name}: supervisor's RSS under load, most", max(soak), None, 8, "MiB", False
            # The first tenth may still fill buffers.
            tenth = max(1, len(soak) // 10)
            yield f"{name}: its growth after the first tenth", max(soak[-tenth:]) - max(soak[:tenth]), None, 0.5, "MiB", False
        yield f"{name}: records missing in the sink", lost(found, sless), None, 0, "", False
        host = f"sless-host-{lang}"
        yield f"{name}: through the proxy, c16", found.median(host, "hello", "rps", connections=16), None, 5000, "/s", True
        yield f"{name}: through the proxy, c1, p50", found.median(host, "hello", "p50_ms", connections=1), None, 0.4, "ms", False
        yield f"{name}: records missing 2 s after the last call", lost(found, host), None, 0, "", False


def lost(found, row):
    """Most calls that were answered and have no record. Calls that the end of the load cut off have one as well: they only add."""
    runs = [r for r in found.results if r["row"] == row and r["case"] == "records"]
    return max((max(0, r["calls"] - (r["stored"] or 0)) for r in runs), default=None)


def figure(value, unit=""):
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 or float(value).is_integer() else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")


def show(results):
    found = Results(results)
    print("\n| | goal | measured | limit row | |\n|---|---|---|---|---|")
    for what, measured, base, goal, unit, more in goals(found):
        if measured is None and base is None:       # no row of it was in this run
            continue
        if measured is None or goal is None:
            verdict = "not measured"
        else:
            verdict = "pass" if (measured >= goal if more else measured <= goal) else "**miss**"
        print(f"| {what} | {'≥' if more else '≤'} {figure(goal, unit)} | {figure(measured, unit)} | {figure(base, unit)} | {verdict} |")

    print("\n| row | c1 p50 ms | c1 /s | c16 /s | c16 p99 ms | c64 /s | CPU µs a call, c1 / c16 / c64 | 1 MiB echo p50 ms | 1,000 lines p50 ms | cold ms | RSS MiB idle / after load | bad answers |")
    print("|" + "---|" * 12)
    for row in found.rows():
        def median(case, field, **where):
            return figure(found.median(row, case, field, **where))
        cells = [row, median("hello", "p50_ms", connections=1), median("hello", "rps", connections=1), median("hello", "rps", connections=16), median("hello", "p99_ms", connections=16),
                 median("hello", "rps", connections=64), " / ".join(median("hello", "cpu_us", connections=c) for c in (1, 16, 64)), median("echo", "p50_ms"), median("logs", "p50_ms"),
                 median("cold", "ms"), f"{median('rss', 'mib', when='idle')} / {median('rss', 'mib', when='after load')}", str(sum(found.values(row, "hello", "bad")))]
        print("| " + " | ".join(cells) + " |")

    failed = [r for r in results if r["case"] == "failed"]
    for r in failed:
        print(f"\n{r['row']}: {r['what']} failed: {r['error']}")

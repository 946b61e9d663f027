-- POSTs the file BENCH_BODY as JSON, prints one line of JSON at the end.
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.body = file:read("*a")
file:close()
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('\nJSON {"calls":%d,"us":%d,"p50":%d,"p99":%d,"bad":%d,"broken":%d}\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end

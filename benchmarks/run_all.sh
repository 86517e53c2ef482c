#!/usr/bin/env bash
# Everything that is measured on a GPU, a step at a time: benchmarks/run_all.sh [STEP...] (all by default).
# Each step has a time limit and writes its own file; an interrupted suite or table continues when run again.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results/h200}

limited() { # limited SECONDS COMMAND...: goes on after a failure, says how each ended
    local seconds=$1
    shift
    timeout "$seconds" "$@"
    printf '== %s: exit %s\n' "$*" "$?"
}
known=benchmarks/results/h200/raced.json # tried first
suite() {
    limited 580 "$python" benchmarks/gemm_suite.py --large --dtype "$1" --layout "$2" --out "$out" \
        --known $known benchmarks/results/h200/suite-bf16-"$2"-large.json --seeds 6 --finalists 3 --final-ms 400
}
training() {
    limited 200 "$python" benchmarks/gemm_suite.py --training --out "$out" \
        --known $known --seeds 6 --finalists 3 --final-ms 400
}

tests() {
    limited 120 "$python" -m pytest -x -v tests/gpu/test_ops.py
    # their cases are compiled side by side already
    limited 580 "$python" -m pytest -v tests/gpu/test_wgmma.py tests/gpu/test_multicast.py
    limited 580 "$python" -m pytest -v -n 12 tests/gpu --ignore tests/gpu/test_ops.py \
        --ignore tests/gpu/test_wgmma.py --ignore tests/gpu/test_multicast.py
}
pipeline() { limited 240 "$python" benchmarks/pipeline.py --out "$out"; }
orders() { limited 150 "$python" benchmarks/order_sweep.py --out "$out"; }
suites() {
    suite bf16 nt
    suite bf16 nn
    suite bf16 tn
    suite fp16 nt
    suite fp16 nn
    suite fp16 tn
}
counters() {
    limited 300 "$python" benchmarks/counters.py
    limited 300 "$python" benchmarks/counters.py --fitting
}
tables() {
    limited 580 "$python" benchmarks/time_tables.py --seconds 540
    limited 300 "$python" benchmarks/time_tables.py --fitting
}
own() { limited 240 "$python" benchmarks/own_clocks.py; }
settling() { limited 60 "$python" benchmarks/settling.py; }
calibration() { limited 120 "$python" benchmarks/calibration.py; }
overhead() { limited 120 "$python" benchmarks/host_overhead.py; }
model() { limited 580 "$python" benchmarks/model.py --layers 8 --tune-seconds 15; }
layouts() { limited 120 "$python" benchmarks/smem_bench.py; }
sanitizer() { limited 580 "$python" benchmarks/sanitize.py; }
tuning() {
    limited 900 "$python" benchmarks/tune_suite.py wall
    limited 900 "$python" benchmarks/tune_suite.py winners
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(tests pipeline orders suites training counters tables settling own calibration overhead model layouts sanitizer tuning)
for step in "${steps[@]}"; do
    case $step in
        tests | pipeline | orders | suites | training | counters | tables | settling | own | calibration | overhead | model | layouts | \
            sanitizer | tuning) "$step" ;;
        *) printf 'step must be tests, pipeline, orders, suites, training, counters, tables, settling, own, calibration, overhead, model, layouts, sanitizer or tuning, got %s\n' "$step" >&2; exit 2 ;;
    esac
done

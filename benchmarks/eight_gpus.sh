#!/usr/bin/env bash
# Everything that this project wants to know of a machine with several GPUs, each part bounded, in one file to send.
#
#   benchmarks/eight_gpus.sh [OUT [PART...]]   OUT: a new folder (default ./eight_gpus); OUT.tar.gz is what to send
#                                              PART: only these, such as `probe` or `bench-ranks8` (default: all)
#
# It takes 25 minutes on eight GPUs by our estimate, and 80 at most. The package must be installed (`make build`, or `pip
# install '.[test]'`), and the GPUs must be idle. A part that fails is noted in OUT/summary.txt and the next one goes on.
# The file holds versions, GPU names, topology, timings and test results, and what `info` and `doctor` print, the GPUs'
# UUIDs and PCI addresses among it, and where a part failed maybe paths. No names of machines or people, and no network.
#
# RANKS=8 in the environment, under the CUDA multi-process service, rehearses it on fewer GPUs: ranks then share them, so
# that what it measures is emulated, NCCL takes no part, and no rank is killed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(realpath -m "${1:-eight_gpus}")
wanted=" ${*:2} "
if [ -e "$out" ]; then
  echo "$out exists already; name a new folder" >&2
  exit 2
fi
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
if [ "$gpus" -lt 2 ] && { [ "$gpus" = 0 ] || [ -z "${RANKS:-}" ]; }; then
  echo "two GPUs at least are needed; torch sees $gpus" >&2
  exit 2
fi
mkdir -p "$out"
most=${RANKS:-$((gpus < 8 ? gpus : 8))}
sharing=$((most > gpus))
failed=0
known=

# part SECONDS NAME COMMAND...: its output goes to OUT/NAME.txt.
part() {
  local limit=$1 name=$2 began=$SECONDS status=0
  shift 2
  known+=" $name "
  if [ -n "${wanted// /}" ] && [[ $wanted != *" $name "* ]]; then return; fi
  printf '%-24s' "$name"
  (cd "$out" && timeout --kill-after=20 "$limit" "$@") >"$out/$name.txt" 2>&1 || status=$?
  if [ "$status" = 0 ]; then echo "ok, $((SECONDS - began)) s"; else failed=$((failed + 1)) && echo "exit code $status"; fi
} > >(tee -a "$out/summary.txt")

export PCIE_ALLREDUCE_TUNED=0
sizes=1024,4096,14336,43008,57344,131072,524288,1048576,2097152
part 30 topology nvidia-smi topo -m
part 60 info pcie-allreduce info
part 60 doctor bash -c 'pcie-allreduce doctor --save-snapshot box.json; [ $? -lt 2 ]' # 1: it found something wrong
part 60 probe bash -c "pcie-allreduce probe --ranks $most --json probe.json; [ \$? -lt 2 ]" # 1: left to the fallback
part 120 host-facts python3 "$here/benchmarks/host_facts.py" --ranks "$most" --json "$out/host-facts.json"
living=(-k 'not survivor and not between_capture') # the service does not outlive a client that is killed
((sharing)) || living=()
part 300 tests pytest -q -m gpu "$here/tests" --ignore="$here/tests/sglang" -c "$here/pyproject.toml" "${living[@]}"
for ranks in $(printf '%s\n' "$most" 4 2 | sort -rnu); do
  if [ "$ranks" -gt "$most" ]; then continue; fi
  algorithms=one_shot,two_shot
  part 300 "bench-ranks$ranks" pcie-allreduce bench --ranks "$ranks" --sizes "$sizes" --algorithm "auto,$algorithms" \
    --json "$out/bench-ranks$ranks.json"
  part 240 "fused-ranks$ranks" pcie-allreduce bench --fused --mode graph --ranks "$ranks" --json "$out/fused-ranks$ranks.json"
  part 120 "halves-ranks$ranks" pcie-allreduce bench --halves --mode graph --ranks "$ranks" \
    --sizes 14336,43008,131072,524288 --json "$out/halves-ranks$ranks.json"
  part 120 "bench-host-ranks$ranks" env PCIE_ALLREDUCE_P2P=0 pcie-allreduce bench --ranks "$ranks" --mode graph \
    --sizes 14336,43008,131072,524288 --backends pcie_allreduce,nccl-p2p-off,floor --json "$out/bench-host-ranks$ranks.json"
  late=(python3 "$here/benchmarks/late_rank.py" --ranks "$ranks" --repeats 1 --json)
  part 90 "late-ranks$ranks" "${late[@]}" "$out/late-ranks$ranks.json"
  part 90 "late-host-ranks$ranks" env PCIE_ALLREDUCE_P2P=0 "${late[@]}" "$out/late-host-ranks$ranks.json"
done
part 300 verify-cycle pcie-allreduce verify-cycle --ranks "$most" --backends pcie_allreduce,nccl,nccl-tuned \
  --json "$out/verify-cycle.json"
((sharing)) || part 480 nccl-sweep pcie-allreduce bench --nccl-sweep --ranks "$most" --repeats 1 --json "$out/nccl-sweep.json"
part 240 tune pcie-allreduce tune --ranks "$most" --dry-run --json "$out/tune.json"
kills=--kills
((sharing)) && kills=
part 260 soak pcie-allreduce soak --ranks "$most" --seconds 180 $kills --json "$out/soak.json"

for name in $wanted; do
  if [[ $known != *" $name "* ]]; then echo "no part is called $name; there are" $known >&2 && failed=$((failed + 1)); fi
done
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
echo "written: $out.tar.gz ($failed parts failed)"
exit $((failed > 0))

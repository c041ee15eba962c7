"""Names and describes a build of libllama. `build_llama.sh` asks it by `python -m engine.build`."""

import argparse
import hashlib
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec

PIN = "0.3.36"  # llama-cpp-python, whose source archive carries llama.cpp's
PIN_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

# The x86 features that compilers use when told to build for the CPU at hand. The kernel lists others,
# which come and go with its version.
_X86_FEATURES = re.compile(
    r"(ssse|sse|avx|fma|f16c|bmi|abm|lzcnt|popcnt|movbe|adx|aes|vaes|pclmul|vpclmul|gfni|sha|amx|xop|tbm|cx16)"
)


class Build(msgspec.Struct, frozen=True):
    """`build.json` of a build in the cache."""

    pin: str  # PIN of the checkout that built it
    source: str  # what was built: PIN, a tag or a folder
    variant: str  # "native" or "portable"
    cpu: str  # digest of the CPU's features; "" when it runs on all
    cmake_args: str

    @property
    def key(self) -> str:
        """Name of the build's folder: readable parts first, then a digest of the rest."""
        rest = "\0".join((platform.system(), platform.machine(), self.source, self.cpu, self.cmake_args))
        readable = re.sub(r"[^\w.]+", "-", Path(self.source).name)
        return f"{readable}-{self.variant}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"


@cache
def cpu_digest() -> str:
    """Short digest of the instruction sets of this CPU: equal digests run each other's native builds."""
    return hashlib.sha256(" ".join(sorted(_cpu_features())).encode()).hexdigest()[:12]


def _cpu_features() -> set[str]:
    if sys.platform == "darwin":
        brand = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=10)
        return {platform.machine(), brand.stdout.strip()}
    listed = re.search(r"^(flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if listed is None:
        return {platform.machine()}
    names = listed[2].split()
    return {n for n in names if _X86_FEATURES.match(n)} if listed[1] == "flags" else set(names)


def main() -> None:
    """Print the key of a build, or its `build.json`."""
    parser = argparse.ArgumentParser(prog="python -m engine.build", description=main.__doc__)
    parser.add_argument("what", choices=("key", "manifest"))
    parser.add_argument("--source", default=PIN)
    parser.add_argument("--variant", choices=("native", "portable"), default="native")
    parser.add_argument("--cmake-args", default="")
    args = parser.parse_args()
    cpu = cpu_digest() if args.variant == "native" else ""
    build = Build(PIN, args.source, args.variant, cpu, " ".join(args.cmake_args.split()))
    print(build.key if args.what == "key" else msgspec.json.encode(build).decode())


if __name__ == "__main__":
    main()

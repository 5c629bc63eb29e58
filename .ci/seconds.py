"""Prints the seconds of each test binary in the output of `cargo test`, longest first."""

import re
import sys

seconds = {}
name = None
for line in open(sys.argv[1]):
    if found := re.match(r"\s+(?:Running (?:unittests )?|Doc-tests )(\S+)(?: \(.*/(\S+)-\w+\))?", line):
        path, binary = found.groups()
        name = f"{binary} ({path})" if binary else f"doc tests of {path}"
    elif found := re.match(r"test result: .* finished in ([\d.]+)s", line):
        seconds[name] = seconds.get(name, 0) + float(found[1])
for name, time in sorted(seconds.items(), key=lambda row: -row[1]):
    print(f"{time:8.1f} s  {name}")

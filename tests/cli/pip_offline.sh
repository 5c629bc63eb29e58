#!/bin/sh
# Stands in for a Python that has no plugin, and whose pip has no network.
[ "$1" = -c ] && exit 0
echo "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'" >&2
echo "ERROR: No matching distribution found" >&2
exit 1

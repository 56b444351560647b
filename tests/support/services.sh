#!/usr/bin/env bash
# What tests need beside Python packages, from Debian: Chromium, Prometheus, promtool.
#
#   tests/support/services.sh FOLDER
#
# What is there already stays. Chromium is installed, which takes root. Prometheus's two programs
# are only unpacked, into FOLDER: its package would make a service of it and start that.
set -euo pipefail
folder=$1

have() {
    for name in "$@"; do
        if command -v "$name" >/dev/null || [ -x "$folder/$name" ]; then return; fi
    done
    return 1
}

# A mirror may be away for a moment. Nobody is there to answer a question.
try() {
    for pause in 5 20 0; do
        if DEBIAN_FRONTEND=noninteractive "$@" </dev/null; then return; fi
        sleep "$pause"
    done
    return 1
}

refuse() {
    echo "services: $1" >&2
    exit 1
}

if have chromium chromium-browser google-chrome && have prometheus && have promtool; then
    exit
fi
command -v apt-get >/dev/null ||
    refuse "there is no apt-get here; put chromium, prometheus and promtool on PATH in your system's way"
if [ "$(id -u)" -eq 0 ]; then
    try apt-get -qq update || refuse "apt-get update failed three times"
fi

if ! { have prometheus && have promtool; }; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    (cd "$unpacked" && try apt-get -qq -o APT::Sandbox::User=root download prometheus) ||
        refuse "prometheus was not fetched in three tries; run 'apt-get update' as root if never done"
    dpkg-deb --extract "$unpacked"/prometheus_*.deb "$unpacked"
    install -D --target-directory="$folder" "$unpacked"/usr/bin/prometheus "$unpacked"/usr/bin/promtool
fi

if ! have chromium chromium-browser google-chrome; then
    [ "$(id -u)" -eq 0 ] ||
        refuse "run as root: apt-get update && apt-get install --no-install-recommends chromium"
    try apt-get -qq install --yes --no-install-recommends -o DPkg::Lock::Timeout=120 chromium >/dev/null ||
        refuse "chromium was not installed in three tries"
fi
